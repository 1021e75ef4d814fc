"""What a running run looks like from outside: read from its folder again and again, which nothing is changed in."""

from __future__ import annotations

import json
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from jaxagent.config.run import RunConfig
from jaxagent.config.stages import FineTuneStage, LessonStage, PPOStage, SampleStage, Stage, ValuePretrainStage
from jaxagent.evaluation.results import EvaluationResult
from jaxagent.report.data import read_evaluations
from jaxagent.run.folder import RunFolder, open_run
from jaxagent.run.metrics_log import read_metrics
from rollout.store import StoreError, TrajectoryStore
from rollout.types import Trajectory

NEWEST = 6
"""Trajectories that are looked at."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StageState:
    """How far one stage is: `done` of `total` updates, or of trajectories where it only samples."""

    name: str
    kind: str
    done: int
    total: int | None
    """None where it depends on what earlier stages will leave."""
    rollouts: int
    """In the log so far."""
    taken_over: bool
    """Made by the run that this one started from."""

    @property
    def complete(self) -> bool:
        return self.taken_over or (self.total is not None and self.done >= self.total)


@dataclass(frozen=True, slots=True, kw_only=True)
class Snapshot:
    """A run at one moment."""

    config: RunConfig
    stages: list[StageState]
    records: list[dict[str, Any]]
    newest: list[Trajectory]
    """The last that were accepted, newest first."""
    evaluations: list[EvaluationResult]
    seconds: float | None
    """Wall time so far, as far as it is recorded."""
    silent_s: float | None
    """Seconds since anything in the folder changed; None before there is anything."""
    finished: bool

    @property
    def current(self) -> StageState | None:
        """The last stage in which something has happened: they run one after the other."""
        begun = [stage for stage in self.stages if (stage.done or stage.rollouts) and not stage.taken_over]
        return begun[-1] if begun else None


class RunWatcher:
    """Keeps the store open between snapshots, so that each reads only what is new."""

    def __init__(self, root: Path) -> None:
        """Raises ConfigError where `root` holds no run."""
        self._folder, self._config = open_run(root)
        self._store: TrajectoryStore | None = None
        start, names = self._config.start_from, [stage.name for stage in self._config.stages]
        self._taken_over = names[: names.index(start.after) + 1] if start is not None else []

    def snapshot(self) -> Snapshot:
        """Raises StoreError where the log cannot be read."""
        self._refresh()
        records = list(read_metrics(self._folder.metrics))
        return Snapshot(
            config=self._config,
            stages=[self._stage(stage, records) for stage in self._config.stages],
            records=records,
            newest=self._newest(),
            evaluations=read_evaluations(self._folder, self._config),
            seconds=_clock(self._folder),
            silent_s=_silence(self._folder),
            finished=self._folder.summary.exists(),
        )

    def close(self) -> None:
        if self._store is not None:
            self._store.close()

    def _refresh(self) -> None:
        if self._store is not None:
            self._store.refresh()
        elif self._folder.store.is_dir():
            try:
                self._store = TrajectoryStore(self._folder.store, self._config.store, writable=False)
            except StoreError:
                if any(self._folder.store.glob("log-*")):
                    raise  # otherwise its writer is just making it

    def _stage(self, stage: Stage, records: list[dict[str, Any]]) -> StageState:
        own = [record for record in records if record["stage"] == stage.name]
        rollouts = len(self._store.ids(stage.name)) if self._store is not None else 0
        done = rollouts if isinstance(stage, SampleStage) else len(own)
        total = _total(stage, own)
        return StageState(
            name=stage.name,
            kind=stage.kind,
            done=done,
            total=total,
            rollouts=rollouts,
            taken_over=stage.name in self._taken_over,
        )

    def _newest(self) -> list[Trajectory]:
        if self._store is None:
            return []
        return [self._store.get(name) for name in reversed(self._store.ids()[-NEWEST:])]


def _total(stage: Stage, own: list[dict[str, Any]]) -> int | None:
    if isinstance(stage, PPOStage):
        return stage.updates
    if isinstance(stage, SampleStage):
        return stage.trajectories
    if isinstance(stage, LessonStage):
        items: float | None = stage.lessons
    else:
        items = own[-1].get("kept_trajectories") if own else None
        items = None if items is None else items + (stage.lessons if isinstance(stage, FineTuneStage) else 0)
    assert isinstance(stage, LessonStage | FineTuneStage | ValuePretrainStage)
    return None if items is None else stage.epochs * -(-int(items) // stage.trajectories_per_update)


def _clock(folder: RunFolder) -> float | None:
    try:
        return json.loads(folder.clock.read_text())["seconds"]
    except FileNotFoundError:
        return None


def _silence(folder: RunFolder) -> float | None:
    paths = [folder.metrics, folder.clock, *folder.store.glob("log-*"), *folder.evaluations.glob("*/store/log-*")]
    changed = [path.stat().st_mtime for path in paths if path.exists()]
    return max(0.0, time.time() - max(changed)) if changed else None
