"""One evaluation from a request to its files: a plain class; actor.py gives it a process.

request ─► baselines ─► samples that are missing ─► store ─► rows, tables, files
             │            rollouts of a policy, or stored kernels
             └ tasks whose reference does not run here are named and left out
"""

from __future__ import annotations

import asyncio
import functools
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path
from typing import Any

from jaxagent.collection.rollout_cluster import RolloutCluster
from jaxagent.collection.tickets import Ticket
from jaxagent.config.load import ConfigError
from jaxagent.evaluation.budget import Budget, BudgetUsedUpError
from jaxagent.evaluation.concurrently import concurrently
from jaxagent.evaluation.evaluate import Sampling, collect_samples
from jaxagent.evaluation.folder import EvaluationFolder
from jaxagent.evaluation.policy_source import AdapterSource, KernelsSource, ModelSource, RunSource, ServerSource
from jaxagent.evaluation.report import make_report, remarks
from jaxagent.evaluation.request import EvaluationRequest
from jaxagent.evaluation.scorecard import Row
from jaxagent.evaluation.stored_kernels import StoredKernel, find_kernels, judge_stored, with_missing
from jaxagent.run.progress import Progress
from rollout.config import EndpointConfig
from rollout.endpoint import EndpointPolicy
from rollout.store import TrajectoryStore
from rollout.types import Trajectory
from sandbox.actors.judge import RemoteJudge
from sandbox.tasks import TaskError
from sandbox.types import Task

POLICY = "policy"
"""Name of the policy under evaluation in its rollout actors, also in such as are given."""
LABEL = "samples"
Export = Callable[[RunSource | AdapterSource, Path], Awaitable[str]]
"""Writes the model that is meant into a folder, and says which weights they are."""


class EvaluationService:
    """Blocks an event loop for seconds at most; needs Ray, and starts it where nobody has."""

    def __init__(self, progress: Progress, *, export: Export) -> None:
        self._progress, self._export = progress, export

    async def run(
        self, request: EvaluationRequest, *, judge: RemoteJudge | None = None, rollout_actors: Sequence[Any] = ()
    ) -> list[Row]:
        """Evaluates into `request.out`; samples that are there already are not made again.

        `judge` and `rollout_actors` (from start_rollout_actors, with a policy named POLICY): such as run already are
        used; otherwise they are started, and closed at the end.

        Raises ConfigError for what cannot be evaluated, TaskError where no task can be used, RolloutError,
        SandboxUnavailableError and DeviceError after repeats: the same call continues.
        """
        policy = request.policy
        kernels = find_kernels(policy.path, request.tasks) if isinstance(policy, KernelsSource) else None
        folder = EvaluationFolder(request)
        cluster = RolloutCluster(
            request.config, self._progress, judge=judge, rollout_actors=rollout_actors, verdicts=folder.verdicts
        )
        async with cluster:
            with TrajectoryStore(folder.store, request.config.store) as store:
                unusable = await self._check_references(_with_work(request.tasks, kernels), folder, cluster)
                usable = [task for task in request.tasks if task.task_id not in unusable]
                if kernels is None:
                    await self._roll_out(usable, request, folder, cluster, store)
                    trajectories = list(store.trajectories())
                else:
                    trajectories = await self._judge(kernels, usable, request, cluster, store)
        report = await asyncio.to_thread(make_report, request, trajectories, usable, unusable)
        stored = {kernel.trajectory_id: kernel.candidate.files for kernel in kernels or ()}
        await asyncio.to_thread(folder.write_results, trajectories, report, stored=stored)
        for remark in remarks(report):
            self._progress.say(remark)
        return report.rows

    async def _check_references(
        self, tasks: Sequence[Task], folder: EvaluationFolder, cluster: RolloutCluster
    ) -> dict[str, str]:
        """Measures baselines ahead; {task_id: reason} of tasks whose reference does not run on this machine.

        What was found is kept in the folder: a continued evaluation has the same tasks.
        """
        checked: dict[str, str | None] = dict(folder.get("references") or {})
        baselines: dict[str, tuple[float, float]] = dict(folder.get("baselines") or {})
        unchecked = [task for task in tasks if task.task_id not in checked]
        with self._progress.counting("baselines", len(tasks), done=len(tasks) - len(unchecked)) as advance:

            async def one(task: Task) -> None:
                try:
                    baselines.update(await cluster.judge.prepare([task]))
                    checked[task.task_id] = None
                except TaskError as error:
                    checked[task.task_id] = str(error)
                advance()

            await concurrently(one(task) for task in unchecked)
        unusable = {task_id: reason for task_id, reason in checked.items() if reason is not None}
        for task_id, reason in unusable.items():
            self._progress.say(f"not evaluated: {task_id}: {reason.splitlines()[0]}")
        if len(unusable) == len(checked):
            first = next(iter(unusable.values()))
            raise TaskError(f"tasks: none of the {len(checked)} references runs here; the first one: {first}")
        folder.note("baselines", baselines)
        folder.note("references", checked)
        return unusable

    async def _judge(
        self,
        kernels: Sequence[StoredKernel],
        usable: Sequence[Task],
        request: EvaluationRequest,
        cluster: RolloutCluster,
        store: TrajectoryStore,
    ) -> list[Trajectory]:
        known = {task.task_id for task in usable}
        kernels = [kernel for kernel in kernels if kernel.task.task_id in known]
        config = request.config
        await judge_stored(
            kernels,
            store,
            judge=cluster.judge,
            skill=config.tasks.skill,
            at_once=2 * config.judge.num_jobs + config.compile.num_workers,
            progress=self._progress,
        )
        return with_missing((store.get(kernel.trajectory_id) for kernel in kernels), usable)

    async def _roll_out(
        self,
        tasks: Sequence[Task],
        request: EvaluationRequest,
        folder: EvaluationFolder,
        cluster: RolloutCluster,
        store: TrajectoryStore,
    ) -> None:
        config = request.config
        if len(store) >= len(tasks) * config.evaluation.samples_per_task:
            return
        if not cluster.rollout_capacity:
            await self._start_policy(request, folder, cluster)
        budget = Budget(config.evaluation.budget, store.trajectories())

        async def rollout(ticket: Ticket) -> Trajectory:
            return await cluster.rollout(ticket, stage=LABEL, dialogue=config.evaluation.dialogue, policy=POLICY)

        sampling = Sampling(
            label=LABEL,
            tasks=tasks,
            samples_per_task=config.evaluation.samples_per_task,
            seed=config.seed,
            rollout=budget.limited(rollout),
            capacity=cluster.rollout_capacity,
            max_retries=config.rollout.max_retries,
        )
        try:
            await collect_samples(store, sampling, progress=self._progress, on_accept=budget.accept)
        except BudgetUsedUpError as error:
            if not len(store):
                raise ConfigError(f"{error}, before there is a sample; raise it") from None
            self._progress.say(f"{error}: no more samples are started; raise it to go on")

    async def _start_policy(
        self, request: EvaluationRequest, folder: EvaluationFolder, cluster: RolloutCluster
    ) -> None:
        dialogues = [request.config.evaluation.dialogue]
        match request.policy:
            case ServerSource(base_url, model):
                make = functools.partial(EndpointPolicy, EndpointConfig(base_url=base_url, model=model))
                await cluster.start_rollout_actors(lambda number: {POLICY: make}, dialogues)
            case RunSource() | ModelSource() | AdapterSource():
                model_dir = await self._model_dir(request.policy, folder)
                cluster.start_engines(model_dir)
                policy = cluster.engine_policies(model_dir)
                await cluster.start_rollout_actors(lambda number: {POLICY: policy(number)}, dialogues)
                await cluster.engines_ready()
            case KernelsSource():
                raise ConfigError(f"--policy {request.policy}: stored kernels are judged, not rolled out")

    async def _model_dir(self, policy: RunSource | ModelSource | AdapterSource, folder: EvaluationFolder) -> Path:
        if isinstance(policy, ModelSource):
            return policy.path
        if not folder.model.is_dir():
            folder.note("weights", await self._export(policy, folder.model))
        self._progress.say(f"weights: {policy}, {folder.get('weights')}")
        return folder.model


def _with_work(tasks: Sequence[Task], kernels: Sequence[StoredKernel] | None) -> list[Task]:
    """The tasks that something will be judged for: each needs its baselines."""
    if kernels is None:
        return list(tasks)
    needed = {kernel.task.task_id for kernel in kernels}
    return [task for task in tasks if task.task_id in needed]
