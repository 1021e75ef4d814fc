"""What the stages of one run share, and how an update that is done is recorded."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from jaxagent.config.run import RunConfig
from jaxagent.config.stages import PPOStage, Stage
from jaxagent.run.clock import RunClock
from jaxagent.run.folder import RunFolder
from jaxagent.run.metrics_log import MetricsLog
from jaxagent.run.progress import RunProgress
from jaxagent.run.time_limit import TimeLimit
from jaxagent.schedule.cluster import Cluster
from rollout.store import TrajectoryStore
from sandbox.types import Task

UPDATES_A_CALL = 8
"""Updates on the log that the learner makes before it reports, so that progress is seen and calls stay few."""


@dataclass
class Run:
    """What the stages of one run share."""

    config: RunConfig
    folder: RunFolder
    cluster: Cluster
    store: TrajectoryStore
    metrics: MetricsLog
    progress: RunProgress
    clock: RunClock
    train_tasks: Sequence[Task]
    heldout_tasks: Sequence[Task]
    limit: TimeLimit = field(default_factory=TimeLimit)
    _unsaved: tuple[Stage, int] | None = None
    """Stage and updates of what the learner knows and no checkpoint holds."""

    async def record(self, stage: Stage, update: int, total: int, values: Mapping[str, Any]) -> None:
        """One update is done: log it, show it, and save a checkpoint when one is due.

        Of the many short updates on a log about eight are shown.
        """
        self.metrics.write(stage=stage.name, update=update, values=values)
        self.clock.tick()
        done = update + 1
        is_ppo = isinstance(stage, PPOStage)
        if is_ppo or done == total or done % max(total // 8, 1) == 0:
            self.progress.update_line(stage.name, update, total, values)
        settings = self.config.checkpoint
        every = settings.every_updates if is_ppo else settings.every_log_updates
        self._unsaved = stage, done
        if done == total or done % every == 0:
            await self.checkpoint(stage, done, complete=done == total)

    def updates_to_next_checkpoint(self, update: int) -> int:
        """How many updates on the log the learner may make at once, so that a checkpoint holds what its record says."""
        every = self.config.checkpoint.every_log_updates
        return min(UPDATES_A_CALL, every - update % every)

    async def checkpoint(self, stage: Stage, updates: int, *, complete: bool) -> None:
        index = [other.name for other in self.config.stages].index(stage.name)
        record = {"stage": index, "name": stage.name, "updates": updates, "complete": complete}
        await self.cluster.learner.call("save", record)
        self._unsaved = None

    async def save_unsaved(self) -> None:
        """A checkpoint of the updates since the last one, where a session ends between two that are due."""
        if self._unsaved is not None:
            stage, updates = self._unsaved
            await self.checkpoint(stage, updates, complete=False)
