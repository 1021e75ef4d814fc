"""A snapshot of a run as a picture for a terminal: stages, curves, newest rollouts, held-out results."""

from __future__ import annotations

from typing import Any

from rich.console import Group, RenderableType
from rich.panel import Panel
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from jaxagent.evaluation.results import table_rows
from jaxagent.report.data import show_seconds
from jaxagent.report.watched import Snapshot, StageState
from rollout.types import Trajectory

_BLOCKS = "▁▂▃▄▅▆▇█"
_CURVES: list[tuple[str, str, str]] = [
    ("reward", "mean_reward", "{:.2f}"),
    ("correct", "outcome_correct", "{:.0%}"),
    ("entropy", "entropy", "{:.3f}"),
    ("explained variance", "explained_variance", "{:.2f}"),
    ("clipped length", "clipped_length_ratio", "{:.0%}"),
    ("ratio, 1 %", "ratio_p1", "{:.3f}"),
    ("ratio, 99 %", "ratio_p99", "{:.3f}"),
    ("log-prob gap", "logprob_gap_mean", "{:.2g}"),
    ("staleness", "staleness_mean", "{:.2f}"),
    ("nll", "nll", "{:.3f}"),
    ("tokens/s", "tokens_per_s", "{:.0f}"),
    ("profilers in use", "profiler_use", "{:.0%}"),
    ("engines in use", "engine_use", "{:.0%}"),
    ("seconds an update", "seconds", "{:.1f}"),
]
_HELDOUT_COLUMNS = ("after", "reward", "pass", "> eager", "> compile", "vs eager", "vs compile")
_COLORS = {"correct": "green", "wrong": "yellow", "refused": "bright_black", "timeout": "blue"}
SILENT_S = 120.0
"""A run that wrote nothing for so long is pointed out: one update may take that long, a stage's start too."""


def view(snapshot: Snapshot, *, width: int = 100) -> RenderableType:
    current = snapshot.current
    parts: list[RenderableType] = [_head(snapshot), _stages(snapshot)]
    if current is not None:
        records = [record for record in snapshot.records if record["stage"] == current.name]
        if records:
            parts.append(Panel(_curves(records, points=max(10, min(60, width - 60))), title=current.name))
    if snapshot.newest:
        parts.append(Panel(_rollouts(snapshot.newest), title="newest rollouts"))
    if snapshot.evaluations:
        parts.append(Panel(_heldout(snapshot), title="held-out tasks"))
    return Group(*parts)


def sparkline(values: list[float | None], points: int) -> str:
    """The last `points` values between their least and largest; a blank where there is none."""
    shown = values[-points:]
    known = [value for value in shown if value is not None]
    if not known:
        return ""
    low, span = min(known), max(known) - min(known)
    return "".join(" " if v is None else _BLOCKS[round((v - low) / span * 7) if span else 3] for v in shown)


def _head(snapshot: Snapshot) -> Text:
    text = Text(snapshot.config.name, style="bold")
    text.append(f"   {show_seconds(snapshot.seconds)} so far" if snapshot.seconds is not None else "   just begun")
    if snapshot.finished:
        text.append("   finished", style="green")
    elif snapshot.silent_s is not None:
        style = "red" if snapshot.silent_s > SILENT_S else "bright_black"
        text.append(f"   last written {show_seconds(snapshot.silent_s)} ago", style=style)
    return text


def _stages(snapshot: Snapshot) -> Table:
    table = Table.grid(padding=(0, 2))
    for stage in snapshot.stages:
        is_current = stage is snapshot.current and not snapshot.finished
        share = 1.0 if stage.complete else stage.done / (stage.total or 1) if stage.total else 0.0
        bar = ProgressBar(total=1.0, completed=share, width=24)
        rollouts = f"{stage.rollouts} rollouts" if stage.rollouts and stage.kind != "sample" else ""
        table.add_row("▶" if is_current else " ", stage.name, stage.kind, bar, _progress(stage), rollouts)
    return table


def _progress(stage: StageState) -> str:
    if stage.taken_over:
        return "taken over"
    unit = "rollouts" if stage.kind == "sample" else "updates"
    if stage.total is None:
        return f"{stage.done} {unit}" if stage.done else ""
    return f"{stage.done}/{stage.total} {unit}"


def _curves(records: list[dict[str, Any]], *, points: int) -> Table:
    table = Table.grid(padding=(0, 2))
    for name, metric, form in _CURVES:
        values = [record.get(metric) for record in records]
        known = [value for value in values if value is not None]
        if known:
            spread = f"{form.format(min(known))} … {form.format(max(known))}"
            table.add_row(name, Text(form.format(known[-1]), style="bold"), sparkline(values, points), spread)
    return table


def _rollouts(trajectories: list[Trajectory]) -> Table:
    table = Table.grid(padding=(0, 2))
    for trajectory in trajectories:
        judged = trajectory.judgement
        faster = ""
        if judged.candidate_ms and judged.compile_ms:
            faster = f"{judged.compile_ms / judged.candidate_ms:.2f}x compile"
        outcome = Text(str(judged.outcome), style=_COLORS.get(str(judged.outcome), "red"))
        reward = "" if judged.reward is None else f"{judged.reward:g}"
        facts = f"{len(trajectory.turns)} turns, {trajectory.stop_reason}, {trajectory.seconds:.1f} s"
        table.add_row(Text(trajectory.task_id), outcome, reward, faster, facts)
    return table


def _heldout(snapshot: Snapshot) -> Table:
    table = Table(box=None, pad_edge=False, padding=(0, 1))
    for place, column in enumerate(_HELDOUT_COLUMNS):
        table.add_column(column, justify="left" if place == 0 else "right", no_wrap=True)
    for row in table_rows(snapshot.evaluations)[1]:
        # Rewards with their interval; the others without, or a row would not fit.
        table.add_row(*(Text(cell if place < 2 else cell.partition(" [")[0]) for place, cell in enumerate(row)))
    return table
