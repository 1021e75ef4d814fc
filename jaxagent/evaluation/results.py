"""Results of one evaluation: what is kept of every sample, the figures with intervals, and how two compare."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from jaxagent.evaluation.aggregate import (
    Interval,
    best_of,
    bootstrap_levels,
    mean_reward,
    outcome_shares,
    overall,
    paired_difference,
    score,
)
from rollout.types import Trajectory
from sandbox.types import Judgement

FIGURES = ("pass_rate", "faster_than_eager", "faster_than_compile", "geomean_vs_eager", "geomean_vs_compile")


@dataclass(frozen=True, slots=True, kw_only=True)
class EvaluationResult:
    """Best solution of every trajectory, by task, and the figures of the whole set."""

    label: str
    num_tasks: int
    num_samples: int
    rewards: dict[str, list[float]]
    """task_id -> reward of each sample's best solution."""
    outcomes: dict[str, float]
    figures: dict[str, Interval | None]
    """mean_reward and those of the paper's tables; 95 % bootstrap intervals over tasks."""

    def to_json(self) -> dict[str, Any]:
        return dataclasses.asdict(self) | {"mean_reward": self.figures["mean_reward"].value}  # type: ignore[union-attr]

    @classmethod
    def from_json(cls, record: dict[str, Any]) -> EvaluationResult:
        figures = {name: Interval(**value) if value else None for name, value in record["figures"].items()}
        return cls(
            label=record["label"],
            num_tasks=record["num_tasks"],
            num_samples=record["num_samples"],
            rewards=record["rewards"],
            outcomes=record["outcomes"],
            figures=figures,
        )


def best_judgement(trajectory: Trajectory) -> Judgement:
    """Evaluation takes the best solution of the trajectory (paper)."""
    timed = [turn.judgement for turn in trajectory.turns if turn.judgement and turn.judgement.reward is not None]
    return best_of([trajectory.judgement, *timed])


def summarize(
    label: str, trajectories: Iterable[Trajectory], *, seed: int, level_of: Callable[[str], str] = lambda task_id: ""
) -> EvaluationResult:
    """One row of a results table. `level_of` names a task's level: several make one row as in the paper (`overall`).

    Raises ValueError where there is nothing to summarize.
    """
    by_task: dict[str, list[Judgement]] = {}
    for trajectory in sorted(trajectories, key=lambda t: (t.task_id, t.sample_index)):
        by_task.setdefault(trajectory.task_id, []).append(best_judgement(trajectory))
    samples = [judgement for judgements in by_task.values() for judgement in judgements]
    if not samples:
        raise ValueError(f"evaluation {label}: no trajectory was judged; are there tasks in tasks.heldout?")
    levels: dict[str, list[list[Judgement]]] = {}
    for task_id, judgements in by_task.items():
        levels.setdefault(level_of(task_id), []).append(judgements)
    return EvaluationResult(
        label=label,
        num_tasks=len(by_task),
        num_samples=len(samples),
        rewards={task: [j.reward if j.reward is not None else -1.0 for j in js] for task, js in by_task.items()},
        outcomes=outcome_shares(samples),
        figures=bootstrap_levels(list(levels.values()), _figures, seed=seed),
    )


def gain(before: EvaluationResult, after: EvaluationResult, *, seed: int) -> Interval:
    """Held-out mean reward, after minus before, paired by task."""
    return paired_difference(before.rewards, after.rewards, seed=seed)


def table_rows(results: Sequence[EvaluationResult]) -> tuple[list[str], list[list[str]]]:
    """Column names and one row a result, as shown in the terminal and in reports."""
    columns = ["policy", "mean reward", "pass", "faster than eager", "faster than compile", "vs eager", "vs compile"]
    rows = []
    for result in results:
        cells = [show(result.figures["mean_reward"])]
        cells += [show(result.figures[name], percent=True) for name in FIGURES[:3]]
        cells += [show(result.figures[name], suffix="x") for name in FIGURES[3:]]
        rows.append([result.label, *cells])
    return columns, rows


def show(interval: Interval | None, *, percent: bool = False, suffix: str = "") -> str:
    if interval is None:
        return "-"
    form = (lambda x: f"{100 * x:.0f}") if percent else (lambda x: f"{x:.2f}")
    unit = " %" if percent else suffix
    return f"{form(interval.value)}{unit} [{form(interval.low)}, {form(interval.high)}]"


def _figures(levels: Sequence[list[Judgement]]) -> dict[str, float | None]:
    scores = overall([score(level) for level in levels])
    mean = mean_reward([judgement for level in levels for judgement in level])
    return {"mean_reward": mean} | {name: getattr(scores, name) for name in FIGURES}
