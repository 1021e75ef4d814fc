"""From judgements to the numbers of a results table: rates, geometric means, bootstrap intervals.

Definitions are those of the CUDA Agent paper: pass = compiles and is correct; faster = correct and t < baseline;
speed-up = geometric mean over correct tasks of the best solution. The overall rates of several levels are weighted by
the number of tasks, and so is the overall geometric mean: exp(sum_l w_l ln g_l), w_l the share of level l among all
tasks, whatever passed.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np

from sandbox.types import Judgement


@dataclass(frozen=True, slots=True, kw_only=True)
class Scores:
    """One row of a results table. Rates are in [0, 1]; geometric means are None where no task passed."""

    num_tasks: int
    pass_rate: float
    faster_than_eager: float
    faster_than_compile: float
    geomean_vs_eager: float | None
    geomean_vs_compile: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Interval:
    """A figure with its 95 % bootstrap interval over tasks."""

    value: float
    low: float
    high: float


def best_of(judgements: Sequence[Judgement]) -> Judgement:
    """The best solution of a trajectory, or of a task's samples: highest reward, then shortest time."""
    return max(judgements, key=lambda j: (j.reward if j.reward is not None else -1.0, -(j.candidate_ms or np.inf)))


def score(judgements: Sequence[Judgement]) -> Scores:
    """Scores of one level from one judgement a task."""
    num = len(judgements)
    if num == 0:
        raise ValueError("score: there are no judgements; a level needs at least one task")
    passed = [j for j in judgements if j.accepted]
    vs_eager = np.array([j.eager_ms / j.candidate_ms for j in passed if j.eager_ms and j.candidate_ms])
    vs_compile = np.array([j.compile_ms / j.candidate_ms for j in passed if j.compile_ms and j.candidate_ms])
    return Scores(
        num_tasks=num,
        pass_rate=len(passed) / num,
        faster_than_eager=float((vs_eager > 1).sum()) / num,
        faster_than_compile=float((vs_compile > 1).sum()) / num,
        geomean_vs_eager=_geomean(vs_eager),
        geomean_vs_compile=_geomean(vs_compile),
    )


def overall(levels: Sequence[Scores]) -> Scores:
    """Several levels as one row: rates weighted by tasks, geometric means by tasks in log space."""
    weights = np.array([level.num_tasks for level in levels], float)
    weights /= weights.sum()

    def rate(name: str) -> float:
        return float(sum(w * getattr(level, name) for w, level in zip(weights, levels, strict=True)))

    def geomean(name: str) -> float | None:
        values = [getattr(level, name) for level in levels]
        known = [(w, v) for w, v in zip(weights, values, strict=True) if v is not None]
        if not known:
            return None
        total = sum(w for w, _ in known)
        return float(np.exp(sum(w / total * np.log(v) for w, v in known)))

    return Scores(
        num_tasks=sum(level.num_tasks for level in levels),
        pass_rate=rate("pass_rate"),
        faster_than_eager=rate("faster_than_eager"),
        faster_than_compile=rate("faster_than_compile"),
        geomean_vs_eager=geomean("geomean_vs_eager"),
        geomean_vs_compile=geomean("geomean_vs_compile"),
    )


def bootstrap(
    tasks: Sequence[Sequence[Judgement]],
    statistic: Callable[[list[Judgement]], float | None],
    *,
    seed: int,
    resamples: int = 2000,
) -> Interval | None:
    """95 % percentile interval of `statistic`, tasks (with all their samples) drawn with replacement.

    None where the statistic does not exist on the data itself; resamples without one are left out.
    """

    def figures(levels: Sequence[list[Judgement]]) -> dict[str, float | None]:
        return {"": statistic(levels[0])}

    return bootstrap_levels([tasks], figures, seed=seed, resamples=resamples)[""]


def bootstrap_levels(
    levels: Sequence[Sequence[Sequence[Judgement]]],
    figures: Callable[[Sequence[list[Judgement]]], dict[str, float | None]],
    *,
    seed: int,
    resamples: int = 2000,
) -> dict[str, Interval | None]:
    """As `bootstrap`, for several figures of several levels at once: each level keeps its number of tasks.

    `levels`: by level, by task, its judgements; `figures` gets the judgements by level.
    """
    values = figures([[j for task in level for j in task] for level in levels])
    rng = np.random.default_rng(seed)
    chosen = [rng.integers(len(level), size=(resamples, len(level))) for level in levels]
    draws: dict[str, list[float]] = {name: [] for name in values}
    for number in range(resamples):
        drawn = [
            [j for index in indices[number] for j in level[index]]
            for level, indices in zip(levels, chosen, strict=True)
        ]
        for name, value in figures(drawn).items():
            if value is not None:
                draws[name].append(value)

    def interval(name: str, value: float | None) -> Interval | None:
        if value is None:
            return None
        low, high = np.percentile(draws[name], [2.5, 97.5])
        return Interval(value=float(value), low=float(low), high=float(high))

    return {name: interval(name, value) for name, value in values.items()}


def paired_difference(
    before: dict[str, list[float]], after: dict[str, list[float]], *, seed: int, resamples: int = 10_000
) -> Interval:
    """Mean over tasks of (mean reward after - before), with its 95 % paired bootstrap interval over tasks.

    Both map task_id to the rewards of its samples. Raises ValueError where their tasks differ.
    """
    if before.keys() != after.keys():
        odd = sorted(before.keys() ^ after.keys())
        raise ValueError(f"paired_difference: these tasks are on one side only: {odd}; compare equal task sets")
    difference = np.array([np.mean(after[task]) - np.mean(before[task]) for task in sorted(before)])
    rng = np.random.default_rng(seed)
    means = difference[rng.integers(len(difference), size=(resamples, len(difference)))].mean(axis=1)
    low, high = np.percentile(means, [2.5, 97.5])
    return Interval(value=float(difference.mean()), low=float(low), high=float(high))


def mean_reward(judgements: Sequence[Judgement]) -> float:
    return float(np.mean([j.reward for j in judgements if j.reward is not None]))


def fast_p(judgements: Sequence[Judgement], threshold: float, *, baseline: Literal["eager", "compile"]) -> float:
    """Share that is correct and more than `threshold` times as fast as the baseline (KernelBench; strictly more)."""
    fast = 0
    for j in judgements:
        baseline_ms = j.eager_ms if baseline == "eager" else j.compile_ms
        fast += bool(j.accepted and j.candidate_ms and baseline_ms and baseline_ms / j.candidate_ms > threshold)
    return fast / len(judgements)


def pass_at_k(num_samples: int, num_correct: int, k: int) -> float:
    """Unbiased chance that one of k samples is correct: 1 - C(n - c, k) / C(n, k) (Chen et al. 2021, eq. 1)."""
    if not 0 < k <= num_samples:
        raise ValueError(f"pass@k: k={k} has to lie between 1 and the {num_samples} samples of a task")
    return 1.0 - math.comb(num_samples - num_correct, k) / math.comb(num_samples, k)


def outcome_shares(judgements: Sequence[Judgement]) -> dict[str, float]:
    counts: dict[str, int] = {}
    for judgement in judgements:
        counts[str(judgement.outcome)] = counts.get(str(judgement.outcome), 0) + 1
    return {name: count / len(judgements) for name, count in sorted(counts.items())}


def _geomean(values: np.ndarray) -> float | None:
    return float(np.exp(np.log(values).mean())) if values.size else None
