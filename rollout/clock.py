"""The time limit of one dialogue. It stands still while the judge makes the agent wait: queueing is not its fault."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Iterator


class DialogueClock:
    """Counts `seconds` down from its first use. Used from one event loop."""

    def __init__(self, seconds: float) -> None:
        self._remaining = seconds
        self._running_since: float | None = None
        self._holds = 0
        self._timeouts: list[asyncio.Timeout] = []

    @property
    def expired(self) -> bool:
        return self.remaining() <= 0

    def remaining(self) -> float:
        self._start()
        running = 0.0 if self._running_since is None else _now() - self._running_since
        return self._remaining - running

    @contextlib.contextmanager
    def hold(self) -> Iterator[None]:
        """Stops the clock; holds may overlap, the last one to end lets it go on."""
        self._remaining, self._running_since = self.remaining(), None
        self._holds += 1
        self._reschedule()
        try:
            yield
        finally:
            self._holds -= 1
            self._start()
            self._reschedule()

    @contextlib.asynccontextmanager
    async def limit(self) -> AsyncIterator[asyncio.Timeout]:
        """Ends its body with TimeoutError when the time is over; `expired()` of what it yields tells whose it was."""
        self._start()
        timeout = asyncio.timeout_at(self._deadline())
        async with timeout:
            self._timeouts.append(timeout)
            try:
                yield timeout
            finally:
                self._timeouts.remove(timeout)

    def _start(self) -> None:
        if self._running_since is None and self._holds == 0:
            self._running_since = _now()

    def _deadline(self) -> float | None:
        return None if self._running_since is None else self._running_since + self._remaining

    def _reschedule(self) -> None:
        for timeout in self._timeouts:
            if not timeout.expired():
                timeout.reschedule(self._deadline())


def _now() -> float:
    return asyncio.get_running_loop().time()
