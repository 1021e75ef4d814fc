"""What an evaluation found, by level and over all: the paper's figures, fast_p and pass@k."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from jaxagent.evaluation.aggregate import fast_p, pass_at_k
from jaxagent.evaluation.families import family_of
from jaxagent.evaluation.results import EvaluationResult, best_judgement, summarize, table_rows
from rollout.types import Trajectory
from sandbox.types import Judgement, Task

FAST_P = (0.0, 0.5, 0.8, 1.0, 1.5, 2.0)
OVERALL = "overall"


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One level, or all of them."""

    result: EvaluationResult
    fast_p_vs_eager: dict[float, float]
    """Threshold -> share of samples that are correct and more than so many times as fast as torch eager."""
    fast_p_vs_compile: dict[float, float]
    pass_at_k: dict[int, float]
    """k -> unbiased pass@k, mean over tasks; k = 1, 2, 4, … and the number of samples, up to what every task has."""

    def to_json(self) -> dict[str, Any]:
        return self.result.to_json() | {
            "fast_p_vs_eager": {f"{p:g}": share for p, share in self.fast_p_vs_eager.items()},
            "fast_p_vs_compile": {f"{p:g}": share for p, share in self.fast_p_vs_compile.items()},
            "pass_at_k": {str(k): chance for k, chance in self.pass_at_k.items()},
        }


def score_rows(trajectories: Iterable[Trajectory], tasks: Sequence[Task], *, seed: int) -> list[Row]:
    """A row for every source of tasks (`kernelbench/level1`), and one over all where there are several.

    The row over all counts as the paper does (jaxagent.evaluation.aggregate.overall). Raises ValueError where nothing
    was judged.
    """
    source = {task.task_id: task.source for task in tasks}
    by_source: dict[str, list[Trajectory]] = {}
    for trajectory in trajectories:
        by_source.setdefault(source[trajectory.task_id], []).append(trajectory)
    rows = [_row(name, by_source[name], seed=seed) for name in sorted(by_source)]
    if len(rows) != 1:
        everything = [trajectory for name in sorted(by_source) for trajectory in by_source[name]]
        rows.append(_row(OVERALL, everything, seed=seed, level_of=source.__getitem__))
    return rows


def family_results(trajectories: Iterable[Trajectory], tasks: Sequence[Task], *, seed: int) -> list[EvaluationResult]:
    """One result for every family of operators that the tasks belong to, the largest first."""
    family = {task.task_id: family_of(task.code) for task in tasks}
    by_family: dict[str, list[Trajectory]] = {}
    for trajectory in trajectories:
        by_family.setdefault(family[trajectory.task_id], []).append(trajectory)
    results = [summarize(name, members, seed=seed) for name, members in by_family.items()]
    return sorted(results, key=lambda result: (-result.num_tasks, result.label))


def tables(rows: Sequence[Row]) -> dict[str, tuple[list[str], list[list[str]]]]:
    """Title -> column names and rows of text."""
    ks = sorted({k for row in rows for k in row.pass_at_k})
    fast_columns = ["tasks", "samples", *(f"fast_{p:g}" for p in FAST_P)]
    columns, figures = table_rows([row.result for row in rows])

    def fast(shares: Callable[[Row], Mapping[float, float]]) -> tuple[list[str], list[list[str]]]:
        return fast_columns, [
            [row.result.label, str(row.result.num_samples), *(f"{100 * shares(row)[p]:.1f} %" for p in FAST_P)]
            for row in rows
        ]

    return {
        "best solution of every sample, 95 % bootstrap intervals over tasks": (["tasks", *columns[1:]], figures),
        "fast_p over torch eager": fast(lambda row: row.fast_p_vs_eager),
        "fast_p over torch.compile": fast(lambda row: row.fast_p_vs_compile),
        "pass@k, unbiased": (
            ["tasks", *(f"pass@{k}" for k in ks)],
            [
                [row.result.label, *(f"{100 * row.pass_at_k[k]:.1f} %" if k in row.pass_at_k else "-" for k in ks)]
                for row in rows
            ],
        ),
    }


def _row(
    label: str, trajectories: Sequence[Trajectory], *, seed: int, level_of: Callable[[str], str] = lambda task_id: ""
) -> Row:
    samples: dict[str, list[Judgement]] = {}
    for trajectory in trajectories:
        samples.setdefault(trajectory.task_id, []).append(best_judgement(trajectory))
    judgements = [judgement for of_task in samples.values() for judgement in of_task]
    return Row(
        result=summarize(label, trajectories, seed=seed, level_of=level_of),
        fast_p_vs_eager={p: fast_p(judgements, p, baseline="eager") for p in FAST_P},
        fast_p_vs_compile={p: fast_p(judgements, p, baseline="compile") for p in FAST_P},
        pass_at_k={k: _mean_pass_at_k(samples.values(), k) for k in ks_of(min(map(len, samples.values())))},
    )


def ks_of(num_samples: int) -> list[int]:
    """1, 2, 4, … up to num_samples, and num_samples itself."""
    powers = [2**power for power in range(num_samples.bit_length()) if 2**power <= num_samples]
    return sorted({*powers, num_samples})


def _mean_pass_at_k(tasks: Iterable[Sequence[Judgement]], k: int) -> float:
    chances = [pass_at_k(len(samples), sum(j.accepted for j in samples), k) for samples in tasks]
    return sum(chances) / len(chances)
