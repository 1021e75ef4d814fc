"""Pictures of held-out results: fast_p curves, speed-ups task by task, and what becomes of rollouts."""

from __future__ import annotations

import html
from collections.abc import Sequence
from typing import Any

from jaxagent.report.charts import LINE_COLORS, Chart
from jaxagent.report.funnel import FUNNEL_STEPS, FunnelRow
from jaxagent.report.heldout import CURVE, HeldoutSamples, decades

_SYMBOLS = ("circle", "diamond", "square", "cross", "triangle-up", "star")


def heldout_charts(samples: Sequence[HeldoutSamples], funnel: Sequence[FunnelRow]) -> list[Chart]:
    """Those for which there is something to draw."""
    samples = [one for one in samples if one.judgements]
    charts = []
    if samples:
        labels = [one.label for one in samples]
        for baseline, name in (("compile", "torch.compile"), ("eager", "torch eager")):
            charts.append(fast_p_chart(name, labels, [one.fast_p_curve(baseline) for one in samples]))
        charts.append(_scatter(samples))
    if funnel:
        charts.append(_funnel(funnel))
    return charts


def fast_p_chart(baseline: str, labels: Sequence[str], curves: Sequence[Sequence[float]]) -> Chart:
    """`curves`: shares at the thresholds CURVE, one a label."""
    traces = [
        {"type": "scatter", "mode": "lines", "name": html.escape(label), "x": list(CURVE), "line": _line(place),
         "y": [round(share, 4) for share in curve], "hovertemplate": "%{y:.1%}"}
        for place, (label, curve) in enumerate(zip(labels, curves, strict=True))
    ]  # fmt: skip
    return Chart(
        title=f"fast_p over {baseline}",
        note=f"Share of samples that are correct and more than p times as fast as {baseline}; p = 0 is pass.",
        traces=traces,
        layout={"showlegend": True, "yaxis": {"range": [-0.02, 1.02], "tickformat": ".0%"}},
        xaxis={"title": {"text": "p", "standoff": 4}, "range": [0, CURVE[-1]],
               "unifiedhovertitle": {"text": "p = %{x}"}},
        by_step=False,
    )  # fmt: skip


def _scatter(samples: Sequence[HeldoutSamples]) -> Chart:
    traces, all_values = [], []
    for place, one in enumerate(samples):
        points = one.speedups()
        all_values += [value for eager, compiled, *_ in points for value in (eager, compiled)]
        traces.append({
            "type": "scatter", "mode": "markers", "name": html.escape(one.label),
            "x": [round(eager, 4) for eager, *_ in points], "y": [round(compiled, 4) for _, compiled, *_ in points],
            "text": [html.escape(task) for *_, task, _ in points], "customdata": [name for *_, name in points],
            "marker": {"size": 7, "opacity": 0.7, "symbol": _SYMBOLS[place % len(_SYMBOLS)],
                       "color": LINE_COLORS[place % len(LINE_COLORS)]},
            "hovertemplate": "<b>%{text}</b><br>%{x:.2f}\u00d7 eager, %{y:.2f}\u00d7 compile",
        })  # fmt: skip
    start, end = decades(all_values)
    axis = {"type": "log", "range": [start, end], "dtick": "D2" if end - start < 2 else 1}
    guide: dict[str, Any] = {"type": "line", "layer": "below", "line": {"width": 1, "dash": "dot", "color": "#8b919c"}}
    return Chart(
        title="Speed-up of correct samples",
        note="Each point is a sample; right of and above the dotted lines it is faster than the baseline. "
        "Click one to open its trajectory.",
        traces=traces,
        layout={"showlegend": True, "hovermode": "closest", "yaxis": axis | {"title": {"text": "\u00d7 compile"}},
                "shapes": [guide | {"x0": 1, "x1": 1, "yref": "paper", "y0": 0, "y1": 1},
                           guide | {"y0": 1, "y1": 1, "xref": "paper", "x0": 0, "x1": 1}]},
        xaxis=axis | {"title": {"text": "\u00d7 eager", "standoff": 4}},
        by_step=False,
    )  # fmt: skip


def _funnel(rows: Sequence[FunnelRow]) -> Chart:
    traces = [
        {"type": "bar", "orientation": "h", "name": html.escape(row.stage), "y": list(FUNNEL_STEPS),
         "x": [row.counts[step] for step in FUNNEL_STEPS], "marker": {"color": LINE_COLORS[place % len(LINE_COLORS)]},
         "hovertemplate": "%{x}"}
        for place, row in enumerate(rows)
    ]  # fmt: skip
    return Chart(
        title="What became of rollouts",
        note="By the judgement of the final files; faster means more than 5 %, as in Eq. 1. PPO takes all.",
        traces=traces,
        layout={"barmode": "stack", "bargap": 0.2, "showlegend": True, "hovermode": "y unified",
                "yaxis": {"autorange": "reversed"}},
        by_step=False,
    )  # fmt: skip


def _line(place: int) -> dict[str, Any]:
    return {"width": 2, "shape": "hv", "color": LINE_COLORS[place % len(LINE_COLORS)]}
