"""The Ray actors of one training run: those that roll out, and a learner.

driver ─► learner                         trains, hands out weights
       ─► judge, engines, rollout actors  see jaxagent.collection.rollout_cluster
"""

from __future__ import annotations

import asyncio
import functools
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

import ray

from jaxagent.collection.rollout_cluster import RolloutCluster
from jaxagent.config.run import RunConfig
from jaxagent.config.stages import FineTuneStage, LessonStage, PPOStage, SampleStage, Stage, ValuePretrainStage
from jaxagent.learner.actor import LearnerActor
from jaxagent.run.folder import RunFolder
from jaxagent.run.progress import RunProgress
from jaxagent.synthesis.expert import ExpertPolicy
from rollout.actors import call
from rollout.chat import ChatFormat
from rollout.config import DialogueConfig
from rollout.packages import PackedPackage
from rollout.types import Policy, RolloutError, Trajectory
from sandbox.types import Task


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

    async def send(self, package: PackedPackage) -> None:
        """Takes part in an engine's exchange; in a thread of its own, so an update under way does not hold it up."""
        await call(self._handle.send, package, died=RolloutError)

    async def call(self, method: str, *args: Any, **kwargs: Any) -> Any:
        return await call(self._handle.call, method, *args, died=RolloutError, **kwargs)


class Cluster(RolloutCluster):
    """The actors of a training run: a learner besides."""

    _has_learner = True

    def __init__(self, config: RunConfig, folder: RunFolder, progress: RunProgress) -> None:
        super().__init__(config, progress, verdicts=folder.verdicts)
        self._folder = folder

    async def __aenter__(self) -> Self:
        await super().__aenter__()
        self._learner_handle = LearnerActor.options(**self._placement.learner()).remote()
        self.learner = LearnerClient(self._learner_handle)
        return self

    def _closing(self) -> list[Any]:
        return [*super()._closing(), self.learner.call("close")]

    async def start_learner(self) -> Path:
        """The learner with its model; returns the folder of the model, which has the tokenizer."""
        await call(self._learner_handle.start, self._config, str(self._folder.root))
        await self._quieten(self._learner_handle)
        return await self.learner.model_dir()

    async def prepare(self, tasks: Sequence[Task], model_dir: Path) -> None:
        """Engines (in the background) and rollout actors; and the baseline times of all tasks."""
        self.start_engines(model_dir)
        actor = self.engine_policies(model_dir)
        expert = functools.partial(expert_policy, self._config, model_dir)
        await self.start_rollout_actors(lambda number: {"actor": actor(number), "expert": expert}, self._dialogues())
        started = time.monotonic()
        with self._progress.counting("baselines", len(tasks)) as advance:
            await self.judge.prepare(list(tasks), lambda *_: advance())
        self._progress.say(f"baselines of {len(tasks)} tasks in {time.monotonic() - started:.0f} s")

    @property
    def published_version(self) -> int:
        """Of the weights that every engine has; -1 before the first publish."""
        return -1 if self._published is None else self._published

    def share(self, trajectories: list[Trajectory]) -> Any:
        """Puts trajectories where the learner can read them again and again."""
        return ray.put(trajectories)

    async def publish(self) -> dict[str, Any]:
        """Brings the learner's weights to every engine; returns seconds and sizes for the metrics."""
        await self.engines_ready()
        if self._published == self.learner.version:
            return {}
        self._package = package = await self.learner.call("write_weights")
        reports = await asyncio.gather(*(self._publish_to(index, package) for index in range(len(self._engines))))
        self._published = package.version
        numbers = {name for report in reports for name, value in report.items() if isinstance(value, int | float)}
        return {f"publish_{name}": max(float(report.get(name, 0.0)) for report in reports) for name in sorted(numbers)}

    async def _send(self, package: PackedPackage) -> None:
        await self.learner.send(package)

    def _dialogues(self) -> list[DialogueConfig]:
        stages = [stage for stage in self._config.stages if isinstance(stage, SampleStage | PPOStage)]
        return [stage.dialogue for stage in stages] + [self._config.evaluation.dialogue]


def expert_policy(config: RunConfig, tokenizer_dir: Path) -> Policy:
    """The scripted expert in the skill's language and in the syntax of the stages that it plays in."""
    played = [stage for stage in config.stages if isinstance(stage, SampleStage) and stage.policy == "expert"]
    parser = played[0].dialogue.parser if played else "qwen3_coder"
    return ExpertPolicy(ChatFormat.from_folder(tokenizer_dir), parser=parser, skill=config.tasks.skill)
