"""The held-out evaluations of a run, sample by sample: what scatter plots and fast_p curves are drawn from."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from jaxagent.evaluation.aggregate import fast_p
from jaxagent.evaluation.results import best_judgement
from rollout.types import Trajectory
from sandbox.types import Judgement

CURVE = tuple(round(0.1 * step, 1) for step in range(51))
"""Thresholds of a fast_p curve: 0 to 5 times as fast."""


@dataclass(frozen=True, slots=True, kw_only=True)
class HeldoutSamples:
    """The best solution of every sample of one evaluation, in the order of the store."""

    label: str
    task_ids: list[str]
    trajectory_ids: list[str]
    judgements: list[Judgement]

    @classmethod
    def of(cls, label: str, trajectories: Iterable[Trajectory]) -> HeldoutSamples:
        samples = [(t.task_id, t.trajectory_id, best_judgement(t)) for t in trajectories]
        return cls(
            label=label,
            task_ids=[task for task, _, _ in samples],
            trajectory_ids=[name for _, name, _ in samples],
            judgements=[judgement for _, _, judgement in samples],
        )

    def fast_p_curve(self, baseline: str) -> list[float]:
        """Share of samples that are correct and more than p times as fast, for every p of CURVE."""
        kind = "eager" if baseline == "eager" else "compile"
        return [fast_p(self.judgements, threshold, baseline=kind) for threshold in CURVE] if self.judgements else []

    def speedups(self) -> list[tuple[float, float, str, str]]:
        """(over eager, over torch.compile, task, trajectory) of those that are correct and were timed."""
        points = []
        for task, name, judged in zip(self.task_ids, self.trajectory_ids, self.judgements, strict=True):
            if judged.accepted and judged.candidate_ms and judged.eager_ms and judged.compile_ms:
                over = judged.eager_ms / judged.candidate_ms, judged.compile_ms / judged.candidate_ms
                points.append((*over, task, name))
        return points


def decades(values: Sequence[float]) -> tuple[float, float]:
    """A logarithmic axis that holds all values and 1 with a little room, as powers of ten."""
    logs = [0.0, *(math.log10(value) for value in values)]
    return min(logs) - 0.12, max(logs) + 0.12
