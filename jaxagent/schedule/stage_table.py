"""The table by stage that ends a run: what its updates reported, from metrics.jsonl."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

# title -> (metric, how the updates of a stage become one figure, format)
STAGE_COLUMNS: list[tuple[str, str, str, str]] = [
    ("mean reward", "mean_reward", "first_last", "{:.2f}"),
    ("correct", "outcome_correct", "last", "{:.0%}"),
    ("wrong", "outcome_wrong", "last", "{:.0%}"),
    ("compile error", "outcome_compile_error", "last", "{:.0%}"),
    ("other", "outcome_other", "last", "{:.0%}"),
    ("entropy", "entropy", "first_last", "{:.3f}"),
    ("expl. var.", "explained_variance", "last", "{:.2f}"),
    ("clipped len.", "clipped_length_ratio", "last", "{:.2f}"),
    ("logprob gap", "logprob_gap_mean", "last", "{:.4f}"),
    # engine against trainer at the same weights: numerics alone, so the largest of all updates is what counts
    ("fresh gap", "fresh_logprob_gap_max", "max", "{:.0e}"),
    ("staleness", "staleness_mean", "mean", "{:.2f}"),
    ("tokens/s", "tokens_per_s", "median", "{:.0f}"),
    ("seconds", "seconds", "sum", "{:.0f}"),
]
_NAMED_OUTCOMES = {"outcome_correct", "outcome_wrong", "outcome_compile_error"}


def stage_rows(records: Iterable[dict[str, Any]]) -> tuple[list[str], list[list[str]]]:
    """Column names and one row a stage, in the order in which the stages ran."""
    stages = _by_stage(_with_other_outcomes(record) for record in records)
    columns = ["stage", "updates", *(title for title, *_ in STAGE_COLUMNS)]
    rows = [
        [name, str(len(updates)), *(_cell(updates, metric, how, form) for _, metric, how, form in STAGE_COLUMNS)]
        for name, updates in stages.items()
    ]
    return columns, rows


def stage_summary(records: Iterable[dict[str, Any]]) -> list[dict[str, Any]]:
    """The same for summary.json: every metric's first, last and mean over the updates of a stage."""
    return [
        {
            "stage": name,
            "updates": len(updates),
            "metrics": {m: _spread(_values(updates, m)) for m in _metrics(updates)},
        }
        for name, updates in _by_stage(records).items()
    ]


def _by_stage(records: Iterable[dict[str, Any]]) -> dict[str, list[dict[str, Any]]]:
    """In the order in which the stages ran."""
    stages: dict[str, list[dict[str, Any]]] = {}
    for record in records:
        stages.setdefault(record["stage"], []).append(record)
    return stages


def _cell(updates: list[dict[str, Any]], metric: str, how: str, form: str) -> str:
    values = _values(updates, metric)
    if not values:
        return "-"
    if how == "first_last" and len(values) > 1:
        return f"{form.format(values[0])} → {form.format(values[-1])}"
    figures = {
        "mean": sum(values) / len(values),
        "sum": sum(values),
        "median": sorted(values)[len(values) // 2],
        "max": max(values),
        "last": values[-1],
        "first_last": values[-1],
    }
    return form.format(figures[how])


def _with_other_outcomes(record: dict[str, Any]) -> dict[str, Any]:
    others = [v for name, v in record.items() if name.startswith("outcome_") and name not in _NAMED_OUTCOMES]
    has_outcomes = any(name.startswith("outcome_") for name in record)
    if not has_outcomes:
        return record
    return {name: 0.0 for name in _NAMED_OUTCOMES} | record | {"outcome_other": sum(others)}


def _metrics(updates: list[dict[str, Any]]) -> list[str]:
    fixed = {"stage", "update", "step", "time"}
    return sorted({name for record in updates for name in record} - fixed)


def _values(updates: list[dict[str, Any]], metric: str) -> list[float]:
    return [float(record[metric]) for record in updates if isinstance(record.get(metric), int | float)]


def _spread(values: list[float]) -> dict[str, float] | None:
    if not values:
        return None
    return {
        "first": values[0],
        "last": values[-1],
        "mean": sum(values) / len(values),
        "min": min(values),
        "max": max(values),
    }
