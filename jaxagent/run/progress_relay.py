"""Progress from a process without a terminal to one that has it.

actor: ProgressRelay.say / counting ──► events ──take()──► show(): RunProgress of the driver, asked about once a second
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, TypeVar

from jaxagent.run.progress import Progress

_INTERVAL_S = 1.0
_Result = TypeVar("_Result")


@dataclass(frozen=True, slots=True, kw_only=True)
class Event:
    """One line said, or where the counting of `text` stands (`done` None: it has ended)."""

    text: str
    done: int | None = None
    total: int | None = None


class ProgressRelay:
    """A Progress that keeps events until they are taken; of a counting the latest stand only."""

    def __init__(self) -> None:
        self._events: list[Event] = []

    def say(self, text: str) -> None:
        self._events.append(Event(text=text))

    @contextmanager
    def counting(self, what: str, total: int, done: int = 0) -> Iterator[Any]:
        def put(done: int | None) -> None:
            if self._events and self._events[-1].total is not None and self._events[-1].text == what:
                self._events.pop()
            self._events.append(Event(text=what, done=done, total=total))

        def advance(step: int = 1) -> None:
            nonlocal done
            done += step
            put(done)

        put(done)
        try:
            yield advance
        finally:
            put(None)

    def take(self) -> list[Event]:
        taken, self._events = self._events, []
        return taken


async def followed(work: Awaitable[_Result], take: Callable[[], Awaitable[list[Event]]], progress: Progress) -> _Result:
    """Awaits `work` and shows meanwhile what `take` gives of a ProgressRelay elsewhere."""
    running = asyncio.ensure_future(work)
    shown = _Shown(progress)
    try:
        while not running.done():
            await asyncio.wait([running], timeout=_INTERVAL_S)
            for event in await take():
                shown.show(event)
        return running.result()
    finally:
        shown.close()
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)  # cancelling reaches the other side while it is there


class _Shown:
    """The countings that are shown now, by name: (context, advance, done)."""

    def __init__(self, progress: Progress) -> None:
        self._progress = progress
        self._open: dict[str, tuple[contextlib.ExitStack, Any, int]] = {}

    def show(self, event: Event) -> None:
        if event.total is None:
            self._progress.say(event.text)
        elif event.done is None:
            if event.text in self._open:
                self._open.pop(event.text)[0].close()
        elif event.text not in self._open:
            stack = contextlib.ExitStack()
            advance = stack.enter_context(self._progress.counting(event.text, event.total, event.done))
            self._open[event.text] = stack, advance, event.done
        else:
            stack, advance, before = self._open[event.text]
            advance(event.done - before)
            self._open[event.text] = stack, advance, event.done

    def close(self) -> None:
        for stack, *_ in self._open.values():
            stack.close()
        self._open.clear()
