"""What a person sees while a run goes on: one line an update, a bar for what is under way, a table at the end."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from typing import Any, Protocol

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeElapsedColumn
from rich.progress import Progress as Bars
from rich.table import Table

# column -> (metric, format); a stage shows those that it has
COLUMNS: dict[str, tuple[str, str]] = {
    "reward": ("mean_reward", "{:.2f}"),
    "correct": ("outcome_correct", "{:.0%}"),
    "wrong": ("outcome_wrong", "{:.0%}"),
    "compile err": ("outcome_compile_error", "{:.0%}"),
    "refused": ("outcome_refused", "{:.0%}"),
    "entropy": ("entropy", "{:.3f}"),
    "expl. var": ("explained_variance", "{:.2f}"),
    "clipped len": ("clipped_length_ratio", "{:.2f}"),
    "logprob gap": ("logprob_gap_mean", "{:.4f}"),
    "staleness": ("staleness_mean", "{:.2f}"),
    "tokens/s": ("tokens_per_s", "{:.0f}"),
    "nll": ("nll", "{:.3f}"),
}


class Progress(Protocol):
    """Where long work says what it does and counts what is done."""

    def say(self, text: str) -> None: ...

    def counting(self, what: str, total: int, done: int = 0) -> AbstractContextManager[Any]:
        """Yields advance(): one more of `total` is done."""
        ...


LOG_WIDTH = 160
"""Of tables in a log file, where no terminal sets the width."""


class RunProgress:
    """A console for one run. On a terminal the bar moves; in a log file only whole lines appear."""

    def __init__(self, console: Console | None = None) -> None:
        self.console = console or Console(stderr=True, soft_wrap=True)
        if not self.console.is_terminal:
            self.console.width = LOG_WIDTH
        self._bars = Bars(
            TextColumn("{task.description}"),
            BarColumn(),
            MofNCompleteColumn(),
            TimeElapsedColumn(),
            console=self.console,
            transient=True,
            disable=not self.console.is_terminal,
        )

    def __enter__(self) -> RunProgress:
        self._bars.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._bars.stop()

    def say(self, text: str) -> None:
        self.console.print(text, highlight=False, markup=False)

    @contextmanager
    def counting(self, what: str, total: int, done: int = 0) -> Iterator[Any]:
        """Yields advance(): one more of `total` is done. A log gets a line every quarter."""
        task = self._bars.add_task(what, total=total, completed=done)
        marks = {round(total * quarter / 4) for quarter in (1, 2, 3)} if total >= 8 else set()

        def advance(step: int = 1) -> None:
            nonlocal done
            done += step
            self._bars.update(task, completed=done)
            if not self.console.is_terminal and done in marks:
                self.say(f"  {what}: {done}/{total}")

        try:
            yield advance
        finally:
            self._bars.remove_task(task)

    def update_line(self, stage: str, update: int, total: int, values: Mapping[str, Any]) -> None:
        shown = [
            f"{column} {form.format(values[metric])}"
            for column, (metric, form) in COLUMNS.items()
            if values.get(metric) is not None
        ]
        self.say(f"  {stage} {update + 1}/{total}  " + "  ".join(shown))

    def table(self, title: str, columns: list[str], rows: list[list[str]]) -> None:
        table = Table(title=title, title_justify="left")
        for place, column in enumerate(columns):
            table.add_column(column, justify="left" if place == 0 else "right", no_wrap=place == 0)
        for row in rows:
            table.add_row(*row)
        self.console.print(table)
