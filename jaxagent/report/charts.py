"""Training curves as figures in plotly's JSON schema. Colours of text and grid come from the page's theme.

The x axis counts updates over all stages; the page draws the stages as bands behind the curves.
"""

from __future__ import annotations

import html
import math
import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from jaxagent.report.data import RunData, stage_bands

Records = list[dict[str, Any]]

# Middle tones that can be told apart, on light and on dark ground.
_OUTCOME_COLORS = {
    "correct": "#2f9e62", "wrong": "#e0952f", "compile_error": "#cf4f4f", "runtime_error": "#a85aa0",
    "timeout": "#6b7bd6", "refused": "#8b919c",
}  # fmt: skip
_PHASE_COLORS = {"waiting": "#8b919c", "learning": "#4a7fd0", "publishing": "#e0952f", "rest": "#b6a58a"}
_AGE_COLORS = ["#2f9e62", "#4a7fd0", "#8e6fd1", "#c2578f", "#cf4f4f", "#e0952f"]
LINE_COLORS = ["#4a7fd0", "#e0952f", "#2f9e62", "#c2578f", "#8e6fd1", "#8b919c"]
_BAND = ("#4a7fd0", "#e0952f", "#2f9e62", "#8b919c")


@dataclass(frozen=True, slots=True, kw_only=True)
class Chart:
    """One figure; `by_step` where x is the step, so that stages can be drawn behind it."""

    title: str
    note: str
    traces: list[dict[str, Any]]
    layout: dict[str, Any]
    by_step: bool = True
    xaxis: dict[str, Any] = field(default_factory=dict)

    def to_json(self) -> dict[str, Any]:
        layout = self.layout | ({"xaxis": self.xaxis} if self.xaxis else {})
        return {"title": self.title, "note": self.note, "by_step": self.by_step,
                "figure": {"data": self.traces, "layout": layout}}  # fmt: skip


def make_charts(run: RunData) -> list[Chart]:
    """Those for which the run has numbers."""
    records = run.records
    charts = [
        _reward(run),
        _outcomes(records),
        _lines("Entropy", "Of the policy at its own tokens, in nats; near 0 it has stopped trying things.",
               records, {"entropy": "entropy"}),
        _lines("Explained variance", "Of the returns by the critic: 1 is perfect, 0 no better than a constant.",
               records, {"explained_variance": "explained variance"}),
        _lines("Clipped-length ratio", "Share of trajectories that met a limit of tokens, turns or time.",
               records, {"clipped_length_ratio": "clipped-length ratio"}, yaxis={"range": [-0.03, 1.03]}),
        _lines("Clipped tokens", "Share of tokens whose ratio was clipped, and whose correction was capped.",
               records, {"clip_fraction": "clip fraction", "importance_capped": "importance capped"},
               yaxis={"rangemode": "tozero"}),
        _lines("Log-prob gap, trainer against engine",
               "Absolute difference at the sampled tokens. “fresh”: tokens of the current weights, so numerics alone.",
               records, {"logprob_gap_mean": "mean", "logprob_gap_p50": "50 %", "logprob_gap_p99": "99 %",
                         "logprob_gap_max": "largest", "fresh_logprob_gap_mean": "fresh, mean"},
               yaxis={"type": "log", "exponentformat": "e", "dtick": 1}),
        _lines("Ratio percentiles", "Of current over old policy as the loss saw it, and of old policy over engine.",
               records, {"ratio_p1": "1 %", "ratio_p50": "50 %", "ratio_p99": "99 %",
                         "rollout_ratio_p1": "engine, 1 %", "rollout_ratio_p50": "engine, 50 %",
                         "rollout_ratio_p99": "engine, 99 %"}),
        _staleness(records),
        _lines("Tokens per second", "Through the learner, prompts and observations included; sampled by the engines.",
               records, {"tokens_per_s": "learner", "engine_tokens_per_s": "engines"}, yaxis={"rangemode": "tozero"}),
        _lines("Pools in use", "Share of profiler devices, engine sequences and dialogues, mean between updates.",
               records, {"profiler_use": "profilers", "engine_use": "engines", "rollout_use": "rollouts"},
               yaxis={"rangemode": "tozero", "tickformat": ".0%"}),
        _phases(records),
    ]  # fmt: skip
    return [chart for chart in charts if any(has_numbers(trace) for trace in chart.traces)]


def metric_columns(records: Records) -> dict[str, list[float | None]]:
    """Every number of metrics.jsonl by name, one entry a step: what the page's free chart draws."""
    fixed = {"stage", "update", "step", "time"}
    names = sorted({name for record in records for name, value in record.items() if _is_number(value)} - fixed)
    return {name: [_round(record.get(name)) for record in records] for name in names}


def step_axis(records: Records, stages: Sequence[str]) -> dict[str, Any]:
    """Stage and update of every step, the bands of the stages with their colours, and colours for curves."""
    colors = {name: _BAND[place % len(_BAND)] for place, name in enumerate(stages)}
    return {
        "colors": LINE_COLORS,
        "steps": [record["step"] for record in records],
        "labels": [f"{record['stage']}, update {record['update']}" for record in records],
        "bands": [{"stage": b.stage, "first": b.first, "last": b.last, "color": colors.get(b.stage, _BAND[-1])}
                  for b in stage_bands(records)],
    }  # fmt: skip


def line(records: Records, metric: str, name: str, color: str = LINE_COLORS[0]) -> dict[str, Any]:
    """A curve that is interrupted between stages."""
    x: list[int | None] = []
    y: list[float | None] = []
    stage = None
    for record in records:
        if stage not in (None, record["stage"]):
            x.append(None)
            y.append(None)
        stage = record["stage"]
        x.append(record["step"])
        y.append(_round(record.get(metric)))
    size = 4 if len(records) < 150 else 2
    return {
        "type": "scatter", "mode": "lines+markers", "name": html.escape(name), "x": x, "y": y, "connectgaps": False,
        "marker": {"size": size}, "line": {"width": 1.6, "color": color},
    }  # fmt: skip


def _lines(
    title: str, note: str, records: Records, metrics: dict[str, str], *, yaxis: dict[str, Any] | None = None
) -> Chart:
    yaxis = yaxis or {}
    traces = [line(records, metric, name, color)
              for (metric, name), color in zip(metrics.items(), LINE_COLORS, strict=False)]  # fmt: skip
    if yaxis.get("type") == "log":
        for trace in traces:
            trace["y"] = [y if y is not None and y > 0 else None for y in trace["y"]]
    traces = [trace for trace in traces if has_numbers(trace)]
    return Chart(title=title, note=note, traces=traces, layout={"yaxis": yaxis, "showlegend": len(traces) > 1})


def _reward(run: RunData) -> Chart:
    """Mean reward of every batch, and held-out reward at the end of the stages after which it was measured."""
    traces = [line(run.records, "mean_reward", "batch")]
    ends = {band.stage: band.last for band in stage_bands(run.records)}
    # A run that began from another one has evaluations of stages that it did not run: they lie before its first step.
    points = [(ends.get(e.label, -0.4), e) for e in run.evaluations if run.records]
    intervals = [(step, e.label, e.figures["mean_reward"]) for step, e in points]
    known = [(step, label, interval) for step, label, interval in intervals if interval is not None]
    if known:
        traces.append({
            "type": "scatter", "mode": "markers", "name": "held out, 95 % interval",
            "x": [step for step, _, _ in known], "y": [_round(i.value) for _, _, i in known],
            "text": [f"after {label}" for _, label, _ in known],
            "error_y": {"type": "data", "symmetric": False, "thickness": 1.5, "width": 5,
                        "array": [_round(i.high - i.value) for _, _, i in known],
                        "arrayminus": [_round(i.value - i.low) for _, _, i in known]},
            "marker": {"size": 9, "symbol": "diamond", "color": "#cf4f4f"},
        })  # fmt: skip
    # Another reward than Eq. 1 (an ablation's) may leave its range.
    in_range = all(y is None or -1 <= y <= 3 for trace in traces for y in trace["y"])
    return Chart(
        title="Mean reward",
        note="Eq. 1: -1 not accepted, 1 correct, 2 faster than eager, 3 faster than eager and torch.compile.",
        traces=traces,
        layout={"yaxis": {"range": [-1.15, 3.15], "dtick": 1} if in_range else {}, "showlegend": True},
    )


def _outcomes(records: Records) -> Chart:
    names = _names(records, r"outcome_(.+)")
    order = [name for name in _OUTCOME_COLORS if name in names] + sorted(names - _OUTCOME_COLORS.keys())
    rows = [record for record in records if any(f"outcome_{name}" in record for name in order)]
    traces = [
        _bar(rows, [record.get(f"outcome_{name}", 0.0) for record in rows], name.replace("_", " "),
             _OUTCOME_COLORS.get(name, "#b6a58a"))
        for name in order
    ]  # fmt: skip
    return Chart(title="Outcomes", note="Share of the batch's trajectories by what became of their final files.",
                 traces=traces, layout=_stacked({"range": [0, 1.0], "tickformat": ".0%"}))  # fmt: skip


def _staleness(records: Records) -> Chart:
    ages = sorted(int(name) for name in _names(records, r"staleness_(-?\d+)"))
    rows = [record for record in records if any(f"staleness_{age}" in record for age in ages)]
    traces = [
        _bar(rows, [record.get(f"staleness_{age}", 0.0) for record in rows], f"{age} behind",
             _AGE_COLORS[min(place, len(_AGE_COLORS) - 1)])
        for place, age in enumerate(ages)
    ]  # fmt: skip
    return Chart(title="Staleness", note="Trajectories of the batch by how many updates behind the learner they began.",
                 traces=traces, layout=_stacked({"rangemode": "tozero"}))  # fmt: skip


def _phases(records: Records) -> Chart:
    names = sorted(_names(records, r"seconds_(.+)"))
    rows = [record for record in records if _is_number(record.get("seconds"))]
    parts = {name: [record.get(f"seconds_{name}") or 0.0 for record in rows] for name in names}
    spent = [sum(values) for values in zip(*parts.values(), strict=True)] if parts else [0.0] * len(rows)
    parts["rest"] = [max(record["seconds"] - known, 0.0) for record, known in zip(rows, spent, strict=True)]
    traces = [_bar(rows, values, name, _PHASE_COLORS.get(name, "#a85aa0"))
              for name, values in parts.items() if any(value > 0.005 for value in values)]  # fmt: skip
    return Chart(title="Seconds by phase", note="Wall time of every update; stages without phases are shown as rest.",
                 traces=traces, layout=_stacked({"rangemode": "tozero"}))  # fmt: skip


def _bar(rows: Records, values: Sequence[Any], name: str, color: str) -> dict[str, Any]:
    return {"type": "bar", "name": html.escape(name), "x": [record["step"] for record in rows],
            "y": [_round(value) for value in values], "marker": {"color": color, "line": {"width": 0}}}  # fmt: skip


def _stacked(yaxis: dict[str, Any]) -> dict[str, Any]:
    return {"barmode": "stack", "bargap": 0.12, "yaxis": yaxis, "showlegend": True}


def _names(records: Records, pattern: str) -> set[str]:
    found = (re.fullmatch(pattern, name) for record in records for name in record)
    return {match.group(1) for match in found if match}


def has_numbers(trace: dict[str, Any]) -> bool:
    return any(_is_number(value) for value in trace["y"])


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)


def _round(value: Any) -> float | None:
    """Six digits: what a chart can show, at a third of the size."""
    return float(f"{value:.6g}") if _is_number(value) else None
