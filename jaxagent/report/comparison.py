"""What a report of several runs lays side by side: their held-out results, and their curves over each other."""

from __future__ import annotations

import html
import itertools
from collections.abc import Sequence
from typing import Any

from jaxagent.evaluation.results import table_rows
from jaxagent.report.charts import LINE_COLORS, Chart, has_numbers, line, step_axis
from jaxagent.report.data import RunData
from jaxagent.report.heldout_charts import fast_p_chart

_OVERLAID = {
    "mean_reward": ("Mean reward", {}),
    "entropy": ("Entropy", {}),
    "explained_variance": ("Explained variance", {}),
    "clipped_length_ratio": ("Clipped-length ratio", {"range": [-0.03, 1.03]}),
    "logprob_gap_mean": ("Log-prob gap, mean", {"type": "log", "exponentformat": "e", "dtick": 1}),
    "tokens_per_s": ("Tokens per second", {"rangemode": "tozero"}),
}


def comparison_table(runs: Sequence[RunData]) -> tuple[list[str], list[list[str]]]:
    """Held-out results of all runs under each other."""
    columns: list[str] = []
    rows = []
    for run in runs:
        columns, cells = table_rows(run.evaluations)
        rows += [[run.config.name, *row] for row in cells]
    return ["run", *columns], rows


def comparison_charts(runs: Sequence[RunData]) -> list[Chart]:
    """Last held-out results as fast_p curves and rewards; then the essential curves, by step of each run."""
    last = [(run.config.name, run.heldout[-1]) for run in runs if run.heldout and run.heldout[-1].judgements]
    charts = [_rewards(runs)]
    if last:
        curves = [samples.fast_p_curve("compile") for _, samples in last]
        charts.append(fast_p_chart("torch.compile", [name for name, _ in last], curves))
    charts += [_overlay(runs, metric, title, yaxis) for metric, (title, yaxis) in _OVERLAID.items()]
    return [chart for chart in charts if chart.traces]


def joint_axis(runs: Sequence[RunData]) -> dict[str, Any]:
    """The axis of `_aligned` steps: every stage as long as the run that made most updates in it."""
    longest: dict[tuple[str, int], dict[str, Any]] = {}
    for records in _aligned(runs):
        longest |= {(record["stage"], record["step"]): record for record in records}
    order = _stage_order(runs)
    return step_axis(sorted(longest.values(), key=lambda record: record["step"]), order)


def _aligned(runs: Sequence[RunData]) -> list[list[dict[str, Any]]]:
    """The records of every run with steps at which a stage begins in the same place in all of them."""
    lengths = dict.fromkeys(_stage_order(runs), 0)
    for run in runs:
        for record in run.records:
            lengths[record["stage"]] = max(lengths.get(record["stage"], 0), record["update"] + 1)
    starts = dict(zip(lengths, itertools.accumulate(lengths.values(), initial=0), strict=False))
    return [[record | {"step": starts[record["stage"]] + record["update"]} for record in run.records] for run in runs]


def _stage_order(runs: Sequence[RunData]) -> list[str]:
    """Stages of all configs, each once; those of the first run first."""
    return list(dict.fromkeys(stage.name for run in runs for stage in run.config.stages))


def _overlay(runs: Sequence[RunData], metric: str, title: str, yaxis: dict[str, Any]) -> Chart:
    traces = [
        line(records, metric, run.config.name, LINE_COLORS[place % len(LINE_COLORS)])
        for place, (run, records) in enumerate(zip(runs, _aligned(runs), strict=True))
    ]
    return Chart(
        title=title,
        note="By update within each stage; the same stage begins in the same place for all runs.",
        traces=[trace for trace in traces if has_numbers(trace)],
        layout={"showlegend": True, "yaxis": yaxis},
    )


def _rewards(runs: Sequence[RunData]) -> Chart:
    traces = []
    for place, run in enumerate(runs):
        known = [(e.label, interval) for e in run.evaluations if (interval := e.figures["mean_reward"]) is not None]
        if known:
            traces.append({
                "type": "scatter", "mode": "markers+lines", "name": html.escape(run.config.name),
                "x": [html.escape(label) for label, _ in known], "y": [round(i.value, 4) for _, i in known],
                "error_y": {"type": "data", "symmetric": False, "thickness": 1.2, "width": 4,
                            "array": [round(i.high - i.value, 4) for _, i in known],
                            "arrayminus": [round(i.value - i.low, 4) for _, i in known]},
                "line": {"width": 1.2, "dash": "dot", "color": LINE_COLORS[place % len(LINE_COLORS)]},
                "marker": {"size": 8},
            })  # fmt: skip
    return Chart(
        title="Held-out mean reward",
        note="After the named stages; bars are 95 % bootstrap intervals over tasks.",
        traces=traces,
        layout={"showlegend": True, "yaxis": {"range": [-1.15, 3.15], "dtick": 1}},
        xaxis={"type": "category"},
        by_step=False,
    )
