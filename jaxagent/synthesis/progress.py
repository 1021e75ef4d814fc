"""What a person sees while tasks are checked: a bar a phase on a terminal, a line now and then in a log file."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

_LINE_EVERY_S = 30.0
_PHASES = {"eager": "run eagerly and time", "compile": "torch.compile"}


@contextmanager
def phase_bars(console: Console) -> Iterator[Callable[[str, int, int], None]]:
    """Yields report(phase, done, total)."""
    if console.is_terminal:
        with _bars(console) as bars:
            yield bars
    else:
        yield _lines(console)


@contextmanager
def _bars(console: Console) -> Iterator[Callable[[str, int, int], None]]:
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with Progress(*columns, console=console, transient=True) as progress:
        known = {phase: progress.add_task(text, total=None, visible=False) for phase, text in _PHASES.items()}

        def report(phase: str, done: int, total: int) -> None:
            progress.update(known[phase], completed=done, total=total, visible=True)

        yield report


def _lines(console: Console) -> Callable[[str, int, int], None]:
    said = {phase: 0.0 for phase in _PHASES}

    def report(phase: str, done: int, total: int) -> None:
        if done == total or time.monotonic() - said[phase] > _LINE_EVERY_S:
            said[phase] = time.monotonic()
            console.print(f"{_PHASES[phase]}: {done} of {total}")

    return report
