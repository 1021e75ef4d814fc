"""A wall-clock limit of one session: a run that nears it stops where nothing is lost, saves, and can be resumed."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable
from typing import TypeVar

T = TypeVar("T")


class TimeUpError(Exception):
    """The session's time is over; the run is whole and can be resumed."""


class TimeLimit:
    """Counts from its making. What waits for rollouts ends at once; an update that has begun is finished."""

    def __init__(self, seconds: float | None = None) -> None:
        """None: no limit. Made within a running event loop, whose clock it goes by."""
        self._seconds = seconds
        self._end = None if seconds is None else asyncio.get_running_loop().time() + seconds

    async def wait(self, awaitable: Awaitable[T]) -> T:
        """The result of something that may be given up halfway; it is cancelled, and TimeUpError raised, at the end."""
        limit = asyncio.timeout_at(self._end)
        try:
            async with limit:
                return await awaitable
        except TimeoutError:
            if not limit.expired():
                raise
            raise self._error() from None

    def check(self) -> None:
        """Between two steps that must not be broken. Raises TimeUpError after the end."""
        if self._end is not None and asyncio.get_running_loop().time() >= self._end:
            raise self._error()

    def _error(self) -> TimeUpError:
        return TimeUpError(f"--stop-after {self._seconds:g}: the time of this session is over")
