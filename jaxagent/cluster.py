"""The Ray actors of one run: started, watched, replaced when they die, and closed.

driver ─► learner           trains, writes weights to shared memory
       ─► judge             compile workers and profiler devices behind it
       ─► engine x M        vLLM; starts while earlier work goes on
       ─► rollout actor x N dialogues, many at a time
"""

from __future__ import annotations

import asyncio
import functools
import logging
import os
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import ray

from jaxagent.actors import LearnerActor
from jaxagent.config import FineTuneStage, LessonStage, PPOStage, RunConfig, SampleStage, Stage, ValuePretrainStage
from jaxagent.progress import RunProgress
from jaxagent.run_folder import RunFolder
from jaxagent.synthesis.expert import ExpertPolicy
from jaxagent.tickets import Ticket
from rollout.actors import EngineActor, call, engine_policy, start_rollout_actors
from rollout.chat import ChatFormat
from rollout.config import DialogueConfig
from rollout.types import EngineError, Policy, RolloutError, Trajectory
from rollout.weights import WeightsPackage
from sandbox.actors import start_judge
from sandbox.quiet_registry import new_registry, remove_abandoned, remove_registry
from sandbox.types import Task

logger = logging.getLogger(__name__)

OBJECT_STORE_BYTES = 512 << 20
"""Of a Ray that this run starts for itself: a batch of trajectories is a few MiB."""


@dataclass(frozen=True)
class Resumed:
    """Where the last checkpoint stands; stage -1 where there is none."""

    stage: int = -1
    name: str | None = None
    updates: int = 0
    complete: bool = True


class LearnerClient:
    """The driver's side of the learner's actor. A lost learner ends the run: --resume continues it."""

    def __init__(self, handle: Any) -> None:
        self._handle = handle
        self.version = 0
        """Policy version of the learner's weights."""

    async def model_dir(self) -> Path:
        """Folder with the model as the run starts from it, and its tokenizer: what engines load."""
        return Path(await self.call("model_dir"))

    async def restore(self) -> Resumed:
        record = await self.call("restore")
        self.version = await self.call("policy_version")
        return Resumed(**record) if record else Resumed()

    async def start_stage(self, stage: Stage) -> None:
        await self.call("start_stage", stage)

    async def ppo_update(self, trajectories: Sequence[Trajectory], stage: PPOStage) -> dict[str, Any]:
        metrics = await self.call("ppo_update", list(trajectories), stage)
        self.version = await self.call("policy_version")
        return metrics

    async def lesson_updates(self, stage: LessonStage, *, max_updates: int) -> list[dict[str, Any]]:
        metrics = await self.call("lesson_updates", stage, max_updates=max_updates)
        self.version = await self.call("policy_version")
        return metrics

    async def log_updates(
        self, trajectories: Any, stage: FineTuneStage | ValuePretrainStage, *, max_updates: int
    ) -> list[dict[str, Any]]:
        """The next updates of a stage that trains on the log. `trajectories` comes from `Cluster.share`."""
        method = "finetune_updates" if isinstance(stage, FineTuneStage) else "value_updates"
        metrics = await self.call(method, trajectories, stage, max_updates=max_updates)
        self.version = await self.call("policy_version")
        return metrics

    async def call(self, method: str, *args: Any, **kwargs: Any) -> Any:
        return await call(self._handle.call, method, *args, died=RolloutError, **kwargs)


class Cluster:
    """The actors of a run, used by the driver's event loop alone."""

    def __init__(self, config: RunConfig, folder: RunFolder, progress: RunProgress) -> None:
        self._config, self._folder, self._progress = config, folder, progress
        self._engines: list[Any] = []
        self._engines_started: asyncio.Task[None] | None = None
        self._rollout_actors: list[Any] = []
        self._under_way: list[int] = []
        self._published: int | None = None
        self._package: WeightsPackage | None = None
        self._reviving = asyncio.Lock()
        self._engine_restarts = 0

    async def __aenter__(self) -> Cluster:
        self._own_ray = connect_ray()
        remove_abandoned()
        self._registry = new_registry(self._config.name)
        self._judge = start_judge(self._config.judge, self._config.compile, registry_dir=self._registry)
        self._learner_handle = LearnerActor.remote()
        self.learner = LearnerClient(self._learner_handle)
        return self

    async def __aexit__(self, *_: object) -> None:
        if self._engines_started is not None:
            self._engines_started.cancel()
            await asyncio.gather(self._engines_started, return_exceptions=True)
        closing = [call(engine.close) for engine in self._engines]
        closing += [self.learner.call("close"), self._judge.close()]
        with_limit = [asyncio.wait_for(close, 30.0) for close in closing]
        for problem in await asyncio.gather(*with_limit, return_exceptions=True):
            if isinstance(problem, Exception):
                logger.warning("while closing: %s: %s", type(problem).__name__, problem)
        if self._own_ray:
            ray.shutdown()
        remove_registry(self._registry)

    async def start_learner(self) -> Path:
        """The learner with its model; returns the folder of the model, which has the tokenizer."""
        await call(self._learner_handle.start, self._config, str(self._folder.root))
        await self._quieten(self._learner_handle)
        return await self.learner.model_dir()

    async def prepare(self, tasks: Sequence[Task], model_dir: Path) -> None:
        """Engines (in the background) and rollout actors; and the baseline times of all tasks."""
        engine = self._config.engine
        self._engines = [EngineActor.remote(str(model_dir), engine) for _ in range(engine.num_engines)]
        self._engines_started = asyncio.create_task(self._start_engines())
        self._start_rollout_actors(model_dir)
        if self._needs_sandboxes():
            await asyncio.gather(*(call(actor.check_sandbox) for actor in self._rollout_actors))
        started = time.monotonic()
        with self._progress.counting("baselines", len(tasks)) as advance:
            await self._judge.prepare(list(tasks), lambda *_: advance())
        self._progress.say(f"baselines of {len(tasks)} tasks in {time.monotonic() - started:.0f} s")

    @property
    def rollout_capacity(self) -> int:
        return self._config.rollout.num_actors * self._config.rollout.trajectories_per_actor

    @property
    def published_version(self) -> int:
        """Of the weights that every engine has; -1 before the first publish."""
        return -1 if self._published is None else self._published

    def take_engine_restarts(self) -> int:
        """Since this was asked last."""
        count, self._engine_restarts = self._engine_restarts, 0
        return count

    async def rollout(self, ticket: Ticket, *, stage: str, dialogue: DialogueConfig, policy: str) -> Trajectory:
        """One trajectory on the least busy actor. Raises RolloutError, SandboxUnavailableError, DeviceError."""
        index = min(range(len(self._under_way)), key=self._under_way.__getitem__)
        self._under_way[index] += 1
        try:
            return await call(
                self._rollout_actors[index].run,
                ticket.task,
                policy=policy,
                stage=stage,
                sample_index=ticket.sample_index,
                seed=ticket.seed,
                dialogue=dialogue,
                trajectory_id=ticket.trajectory_id,
            )
        except EngineError:
            await self._revive_engines()  # a repeat of this rollout should find an engine that answers
            raise
        finally:
            self._under_way[index] -= 1

    def share(self, trajectories: list[Trajectory]) -> Any:
        """Puts trajectories where the learner can read them again and again."""
        return ray.put(trajectories)

    async def publish(self) -> dict[str, Any]:
        """Brings the learner's weights to every engine; returns seconds and sizes for the metrics."""
        if self._engines_started is None:
            raise RuntimeError("publish: prepare() comes first")
        await self._engines_started
        if self._published == self.learner.version:
            return {}
        self._package = package = await self.learner.call("write_weights")
        reports = await asyncio.gather(*(self._publish_to(engine, package) for engine in self._engines))
        self._published = package.version
        numbers = {name for report in reports for name, value in report.items() if isinstance(value, int | float)}
        return {f"publish_{name}": max(float(report.get(name, 0.0)) for report in reports) for name in sorted(numbers)}

    async def _publish_to(self, engine: Any, package: WeightsPackage) -> dict[str, Any]:
        try:
            return await call(engine.publish, package, died=EngineError)
        except EngineError as error:
            logger.warning("an engine failed while it got version %d and is started again: %s", package.version, error)
            await self._restart(engine)
            return await call(engine.publish, package, died=EngineError)

    async def _revive_engines(self) -> None:
        """Starts engines again that do not answer, with the weights that were published last."""
        async with self._reviving:
            for engine in self._engines:
                try:
                    await call(engine.check_health, died=EngineError)
                except EngineError as error:
                    logger.warning("an engine is down and is started again: %s", error)
                    await self._restart(engine)
                    if self._package is not None:
                        await call(engine.publish, self._package, died=EngineError)

    async def _restart(self, engine: Any) -> None:
        self._engine_restarts += 1
        await call(engine.start, died=EngineError)
        await self._quieten(engine)

    async def _start_engines(self) -> None:
        seconds = await asyncio.gather(*(call(handle.start, died=EngineError) for handle in self._engines))
        for handle in self._engines:
            await self._quieten(handle)
        self._progress.say(f"{len(self._engines)} vLLM engine(s) ready in {max(seconds):.0f} s")

    def _start_rollout_actors(self, model_dir: Path) -> None:
        config = self._config

        def policies(number: int) -> dict[str, Any]:
            return {
                "actor": functools.partial(engine_policy, model_dir, self._engines, offset=number),
                "expert": functools.partial(expert_policy, model_dir),
            }

        self._rollout_actors = start_rollout_actors(
            config.rollout.num_actors,
            trajectories_per_actor=config.rollout.trajectories_per_actor,
            policies=policies,
            judge=self._judge,
            sandbox_config=config.sandbox,
            skill=config.tasks.skill,
            quiet_dir=self._registry if config.judge.quiet else None,
        )
        self._under_way = [0] * config.rollout.num_actors

    def _needs_sandboxes(self) -> bool:
        stages = [stage for stage in self._config.stages if isinstance(stage, SampleStage | PPOStage)]
        return any(holder.dialogue.kind == "agentic" for holder in (*stages, self._config.evaluation))

    async def _quieten(self, handle: Any) -> None:
        """The actor's processes stand still while a kernel is timed on their machine, where the config asks for it."""
        if self._config.judge.quiet:
            await call(handle.join_quiet, self._registry)


def expert_policy(tokenizer_dir: Path) -> Policy:
    return ExpertPolicy(ChatFormat.from_folder(tokenizer_dir))


def connect_ray() -> bool:
    """Joins the cluster that RAY_ADDRESS names (a Ray job sets it), else starts Ray for this run alone.

    Returns whether this process started it, and so has to end it.
    """
    if ray.is_initialized():
        return False
    if os.environ.get("RAY_ADDRESS"):
        ray.init(log_to_driver=False)
        return False
    ray.init(
        address="local",
        include_dashboard=False,
        log_to_driver=False,
        logging_level=logging.ERROR,
        object_store_memory=OBJECT_STORE_BYTES,
    )
    return True
