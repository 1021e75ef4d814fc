"""`jaxagent evaluate`: an EvaluationActor with a terminal in front of it."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Literal

from jaxagent.collection.rollout_cluster import ray_for_this_process
from jaxagent.commands.preflight import check_evaluation
from jaxagent.config.load import load_config
from jaxagent.evaluation.actor import EvaluationActor
from jaxagent.evaluation.policy_source import ModelSource, RunSource, parse_policy
from jaxagent.evaluation.request import EvaluationRequest
from jaxagent.evaluation.scorecard import Row, tables
from jaxagent.run.progress import RunProgress
from jaxagent.run.progress_relay import followed
from jaxagent.synthesis.sources import resolve_tasks
from rollout.actors import call


async def evaluate_policy(
    config_path: Path,
    *,
    policy: str,
    tasks: str,
    protocol: Literal["hardened", "paper"],
    out: Path,
    overrides: Sequence[str] = (),
) -> list[Row]:
    """Raises ConfigError, TaskError or SkillError before anything is started, and what EvaluationService.run raises."""
    config = load_config(config_path, overrides)
    config = config.model_copy(update={"judge": config.judge.model_copy(update={"protocol": protocol})})
    source = parse_policy(policy)
    check_evaluation(config, uses_engine=isinstance(source, RunSource | ModelSource))
    request = EvaluationRequest(
        config=config,
        policy=source,
        tasks=resolve_tasks(tasks)[: config.tasks.limit],
        out=out.expanduser().resolve(),
    )
    with RunProgress() as progress, ray_for_this_process():
        progress.say(f"{source}: {len(request.tasks)} tasks, protocol {protocol}, in {request.out}")
        evaluation = EvaluationActor.remote()
        rows = await followed(call(evaluation.run, request), lambda: call(evaluation.progress), progress)
        for title, (columns, cells) in tables(rows).items():
            progress.table(title, columns, cells)
        return rows
