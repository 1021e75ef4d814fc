"""How many rollouts of a stage came how far."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

FUNNEL_STEPS = ("rolled out", "in a PPO batch", "compiled", "correct", "faster than eager", "faster than both")
_BUILT = frozenset({"correct", "wrong", "runtime_error", "timeout"})


@dataclass(frozen=True, slots=True)
class FunnelRow:
    stage: str
    counts: dict[str, int]
    """Step of FUNNEL_STEPS -> rollouts."""


def funnel_rows(index: Iterable[Mapping[str, Any]]) -> list[FunnelRow]:
    """One row a stage, in the order in which they ran, from the index rows of all trajectories, newest first
    (jaxagent.report.trajectories)."""
    rows: dict[str, FunnelRow] = {}
    for row in index:
        if row["stage"] not in rows:
            rows[row["stage"]] = FunnelRow(row["stage"], dict.fromkeys(FUNNEL_STEPS, 0))
        reward = row["reward"] or 0
        reached = (True, row["update"] is not None, row["outcome"] in _BUILT, row["outcome"] == "correct",
                   reward >= 2, reward >= 3)  # fmt: skip
        for step, did in zip(FUNNEL_STEPS, reached, strict=True):
            rows[row["stage"]].counts[step] += did
    return list(rows.values())[::-1]
