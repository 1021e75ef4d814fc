"""`jaxagent evaluate`: an EvaluationActor with a terminal in front of it."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Literal

from jaxagent.collection.ray_connection import ray_for_this_process
from jaxagent.commands.preflight import check_evaluation
from jaxagent.config.load import ConfigError, load_config
from jaxagent.evaluation.actor import EvaluationActor
from jaxagent.evaluation.policy_source import AdapterSource, ModelSource, RunSource, ServerSource, parse_policy
from jaxagent.evaluation.request import EvaluationRequest
from jaxagent.evaluation.scorecard import Row, tables
from jaxagent.run.progress import RunProgress
from jaxagent.run.progress_relay import followed
from jaxagent.synthesis.sources import resolve_tasks
from rollout.actors import call
from rollout.config import EndpointConfig
from rollout.endpoint import EndpointError, EndpointPolicy


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
    if isinstance(source, ServerSource):
        await _check_server(source)
    _check_folder(tasks)
    check_evaluation(config, uses_engine=isinstance(source, RunSource | ModelSource | AdapterSource))
    request = EvaluationRequest(
        config=config,
        policy=source,
        tasks=resolve_tasks(tasks)[: config.tasks.limit],
        out=out.expanduser().resolve(),
        tasks_source=tasks,
    )
    with RunProgress() as progress, ray_for_this_process():
        progress.say(f"{source}: {len(request.tasks)} tasks, protocol {protocol}, in {request.out}")
        evaluation = EvaluationActor.remote()
        rows = await followed(call(evaluation.run, request), lambda: call(evaluation.progress), progress)
        for title, (columns, cells) in tables(rows).items():
            progress.table(title, columns, cells)
        return rows


async def _check_server(source: ServerSource) -> None:
    """Raises ConfigError where nobody answers there, the key is missing or refused, or the model is not served."""
    async with EndpointPolicy(EndpointConfig(base_url=source.base_url, model=source.model)) as policy:
        try:
            await policy.check()
        except EndpointError as error:
            raise ConfigError(f"--policy {source}: {error}") from None


def _check_folder(tasks: str) -> None:
    """A whole checkout of KernelBench holds much that is no task. Raises ConfigError that names its folder of tasks."""
    path = Path(tasks).expanduser()
    problems = path / "KernelBench"
    if problems.is_dir() and not any(path.glob("level[0-9]*")):
        levels = sorted(level.name for level in problems.glob("level[0-9]*"))
        if not levels:
            raise ConfigError(f"--tasks {tasks}: its folder KernelBench holds no level1, level2, …; check it out whole")
        raise ConfigError(
            f"--tasks {tasks}: that is a checkout of KernelBench; name its tasks, {problems} for all levels "
            f"({', '.join(levels)}) or {problems / levels[0]} for one"
        )
