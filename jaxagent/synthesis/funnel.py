"""How many candidates each filter removed, with an example of each."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from rich.console import Console
from rich.table import Table

from jaxagent.synthesis.checker import CheckedTask
from jaxagent.synthesis.reasons import Reason


@dataclass(frozen=True, slots=True)
class FunnelRow:
    """One filter: what reached it goes on minus `dropped`."""

    reason: Reason
    dropped: int
    left: int
    example: str


def funnel(tasks: Sequence[CheckedTask]) -> list[FunnelRow]:
    """Filters in their order; those that removed nothing too."""
    rows, left = [], len(tasks)
    for reason in Reason:
        dropped = [task for task in tasks if task.finding is not None and task.finding.reason is reason]
        left -= len(dropped)
        example = f"{dropped[0].name}: {dropped[0].finding.detail}" if dropped and dropped[0].finding else ""
        rows.append(FunnelRow(reason, len(dropped), left, example))
    return rows


def funnel_json(tasks: Sequence[CheckedTask]) -> dict[str, Any]:
    """Counts by reason, and how many there were and are."""
    dropped = {str(row.reason): row.dropped for row in funnel(tasks) if row.dropped}
    return {"candidates": len(tasks), "kept": sum(task.kept for task in tasks), "dropped": dropped}


def print_funnel(tasks: Sequence[CheckedTask], console: Console) -> None:
    table = Table(title=f"{len(tasks)} candidates", title_justify="left")
    table.add_column("filter")
    table.add_column("dropped", justify="right")
    table.add_column("left", justify="right")
    table.add_column("example", overflow="fold", max_width=90)
    for row in funnel(tasks):
        table.add_row(str(row.reason), str(row.dropped or "·"), str(row.left), row.example)
    console.print(table)
