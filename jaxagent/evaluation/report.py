"""What an evaluation says besides its rows: families, what was left out, degenerate problems, contamination, cost."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import yaml

from jaxagent.config.load import validate
from jaxagent.evaluation.budget import Spent, spent
from jaxagent.evaluation.contamination import Contamination, contamination, unknown
from jaxagent.evaluation.degenerate import degenerate_tasks
from jaxagent.evaluation.policy_source import KernelsSource, RunSource
from jaxagent.evaluation.problems import number_problems
from jaxagent.evaluation.published import published_table
from jaxagent.evaluation.request import EvaluationRequest
from jaxagent.evaluation.results import EvaluationResult, summarize, table_rows
from jaxagent.evaluation.scorecard import Row, family_results, score_rows, tables
from jaxagent.synthesis.sources import resolve_tasks
from rollout.types import Trajectory
from sandbox.tasks import TaskError
from sandbox.types import Task


@dataclass(frozen=True, slots=True, kw_only=True)
class Report:
    """Of one evaluation, for table.md and summary.json."""

    rows: list[Row]
    families: list[EvaluationResult]
    unusable: dict[str, str]
    """Task -> why its reference does not run here: counted nowhere."""
    degenerate: dict[str, str]
    """Task -> why it can be passed without the work: counted in `rows`, and left out in `without_degenerate`."""
    without_degenerate: EvaluationResult | None
    """Over all tasks but those; None where there is none of them, or nothing else."""
    contamination: Contamination
    spent: Spent
    num_asked: int
    """Samples that were asked for; fewer are there where the budget was used up."""

    def to_json(self) -> dict[str, Any]:
        found = self.contamination
        return {
            "rows": [row.to_json() for row in self.rows],
            "families": [result.to_json() for result in self.families],
            "unusable": self.unusable,
            "degenerate": self.degenerate,
            "without_degenerate": None if self.without_degenerate is None else self.without_degenerate.to_json(),
            "spent": dataclasses.asdict(self.spent) | {"asked_samples": self.num_asked},
            "contamination": {
                "train_tasks": found.num_train, "train_source": found.train_source, "same": found.same,
                "same_structure": found.same_structure,
            },
        }  # fmt: skip


def make_report(
    request: EvaluationRequest, trajectories: Sequence[Trajectory], usable: Sequence[Task], unusable: Mapping[str, str]
) -> Report:
    """Raises ValueError where nothing was judged."""
    seed, problems = request.config.seed, number_problems(request.tasks)
    judged = {trajectory.task_id for trajectory in trajectories}
    degenerate = degenerate_tasks(problems, judged)
    others = [trajectory for trajectory in trajectories if trajectory.task_id not in degenerate]
    level_of = {task.task_id: task.source for task in usable}
    asked = len(trajectories)
    if not isinstance(request.policy, KernelsSource):
        asked = len(usable) * request.config.evaluation.samples_per_task
    label = f"without {len(degenerate)} degenerate"
    return Report(
        rows=score_rows(trajectories, usable, seed=seed),
        families=family_results(trajectories, usable, seed=seed),
        unusable=dict(unusable),
        degenerate=degenerate,
        without_degenerate=summarize(label, others, seed=seed, level_of=level_of.__getitem__)
        if degenerate and others
        else None,
        spent=spent(trajectories, request.config.evaluation.budget),
        num_asked=asked,
        contamination=find_contamination(request, [task for task in usable if task.task_id in judged]),
    )


def find_contamination(request: EvaluationRequest, evaluated: Sequence[Task]) -> Contamination:
    """Against what the evaluated run was trained on; of other policies nobody knows here what they have seen."""
    if not isinstance(request.policy, RunSource):
        return unknown(f"what {request.policy} was trained on is not on record")
    path = request.policy.path / "config.yaml"
    source = validate(yaml.safe_load(path.read_text()), where=str(path)).tasks.train
    try:
        return contamination(evaluated, resolve_tasks(source), train_source=source)
    except (TaskError, OSError) as error:
        return unknown(f"the training tasks are gone ({error})")


def all_tables(report: Report) -> dict[str, tuple[list[str], list[list[str]]]]:
    """Title -> column names and rows of text."""
    found = tables(report.rows)
    columns, rows = table_rows(report.families)
    found["by family of operators"] = (
        ["family", "tasks", *columns[1:]],
        [[result.label, str(result.num_tasks), *row[1:]] for result, row in zip(report.families, rows, strict=True)],
    )
    if report.without_degenerate is not None:
        columns, rows = table_rows([report.without_degenerate])
        found["without problems that can be passed without the work"] = ["tasks", *columns[1:]], rows
    published = published_table([row.result.label for row in report.rows])
    if published is not None:
        found["published (arXiv 2602.24286), on H20 GPUs and under the paper's own checks"] = published
    return found


def remarks(report: Report) -> list[str]:
    """Lines for the terminal: what the tables do not say."""
    lines = [report.contamination.sentence(_num_tasks(report)), *_cost(report)]
    if report.degenerate:
        named = ", ".join(report.degenerate)
        lines.append(f"{len(report.degenerate)} problems can be passed without the work (see table.md): {named}")
    return lines


def _cost(report: Report) -> list[str]:
    """What it took, where anything was sampled, and what is missing."""
    lines = [f"Spent on {report.spent.sentence()}"] if report.spent.completion_tokens else []
    if report.spent.samples < report.num_asked:
        lines.append(
            f"Incomplete: {report.spent.samples} of {report.num_asked} samples, of {_num_tasks(report)} tasks, are "
            "there, because the budget was used up; tasks without a sample are counted nowhere"
        )
    return lines


def _num_tasks(report: Report) -> int:
    return len({task for row in report.rows for task in row.result.rewards})


def markdown(report: Report) -> str:
    """The tables, and below them what a reader has to know about them."""
    parts = []
    for title, (columns, cells) in all_tables(report).items():
        lines = [columns, ["---"] + ["---:"] * (len(columns) - 1), *cells]
        parts.append(f"**{title}**\n\n" + "\n".join(f"| {' | '.join(line)} |" for line in lines) + "\n")
    parts.append(f"{report.contamination.sentence(_num_tasks(report))}.\n")
    parts += [f"{line}.\n" for line in _cost(report)]
    if report.degenerate:
        parts.append("Problems that an answer without the work can pass, counted above unless it says otherwise:\n")
        parts.append("".join(f"- {task_id}: {reason}\n" for task_id, reason in report.degenerate.items()))
    if report.unusable:
        parts.append("Not evaluated, and counted nowhere, because the reference does not run here:\n")
        parts.append("".join(f"- {task_id}: {reason.splitlines()[0]}\n" for task_id, reason in report.unusable.items()))
    return "\n".join(parts)
