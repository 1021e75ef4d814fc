"""`jaxagent replay`: the tool calls of a stored trajectory in a fresh sandbox, and where their outcome differs.

Neither Ray nor an engine is needed: the replies are on record.
"""

from __future__ import annotations

import dataclasses
import difflib
import json
from collections.abc import Iterator
from pathlib import Path

from jaxagent.config.load import ConfigError
from jaxagent.config.run import RunConfig
from jaxagent.config.stages import PPOStage, SampleStage
from jaxagent.run.folder import RunFolder, open_run
from jaxagent.synthesis.sources import resolve_tasks
from rollout.config import DialogueConfig
from rollout.replaying import Comparison, Difference, RecordedPolicy, compare
from rollout.store import TrajectoryStore
from rollout.types import Trajectory
from rollout.worker import RolloutWorker
from sandbox.backends import close_pools
from sandbox.judge.local import LocalJudge
from sandbox.types import Task

_EVALUATION = "evaluation_"
_SHOWN_LINES = 12


async def replay_trajectory(run_dir: Path, trajectory_id: str) -> Comparison:
    """Plays the trajectory again with the run's own sandbox, skill and judge settings, and compares.

    Raises ConfigError (no run, no such trajectory, nothing to play), and what RolloutWorker.run raises.
    """
    folder, config = open_run(run_dir)
    stored = find_trajectory(folder, trajectory_id)
    if not stored.turns:
        raise ConfigError(f"--trajectory {trajectory_id}: it holds no turn, a stored kernel was judged as it is")
    task, dialogue = _task(config, stored.task_id), _dialogue(config, stored.stage)
    # Nothing else of this run is under way, so nothing has to be frozen while a kernel is timed.
    judge = LocalJudge(config.judge.model_copy(update={"quiet": False, "num_devices": 1}), config.compile)
    try:
        worker = RolloutWorker(RecordedPolicy(stored), judge, config.sandbox, config.tasks.skill)
        replayed = await worker.run(
            task,
            stage=stored.stage,
            sample_index=stored.sample_index,
            seed=stored.seed,
            dialogue=dialogue,
            trajectory_id=stored.trajectory_id,
        )
    finally:
        await judge.close()
        close_pools()
    return compare(stored, replayed)


def find_trajectory(folder: RunFolder, trajectory_id: str) -> Trajectory:
    """From the run's own store or that of one of its evaluations. Raises ConfigError with ids that are near."""
    known: list[str] = []
    for path in filter(Path.is_dir, (folder.store, *sorted(folder.evaluations.glob("*/store")))):
        with TrajectoryStore(path, writable=False) as store:
            if trajectory_id in store:
                return store.get(trajectory_id)
            known += store.ids()
    near = difflib.get_close_matches(trajectory_id, known, n=3) or known[:3]
    raise ConfigError(
        f"--trajectory {trajectory_id}: not among the {len(known)} trajectories of {folder.root}; "
        f"there are for example {', '.join(near) or 'none yet'}"
    )


def describe(comparison: Comparison) -> Iterator[str]:
    """Lines for people: the verdict first, then each place where the replay went another way."""
    stored, replayed = comparison.stored, comparison.replayed
    yield f"{comparison.trajectory_id}: {comparison.turns} turns, {comparison.calls} tool calls"
    verdict = "the same outcome" if comparison.same_outcome else "ANOTHER OUTCOME"
    yield f"{verdict}: {stored.outcome}, reward {stored.reward} -> {replayed.outcome}, reward {replayed.reward}"
    in_numbers = [d for d in comparison.differences if d.numbers_only]
    for difference in comparison.differences:
        if not difference.numbers_only:
            yield from _lines(difference)
    if in_numbers:
        places = ", ".join(f"{_place(d)} ({d.what})" for d in in_numbers)
        yield f"in numbers alone: {places}"
    if not comparison.differences:
        yield "every observation is the same"


def to_json(comparison: Comparison) -> str:
    record = dataclasses.asdict(comparison) | {"same_outcome": comparison.same_outcome}
    record |= {"stored": comparison.stored.to_json(), "replayed": comparison.replayed.to_json()}
    return json.dumps(record)


def _lines(difference: Difference) -> Iterator[str]:
    yield f"{_place(difference)}: {difference.what} differs"
    before, after = difference.stored.splitlines(), difference.replayed.splitlines()
    changed = list(difflib.unified_diff(before, after, n=1, lineterm=""))[2:]  # without the names of two files
    yield from ("    " + line for line in changed[:_SHOWN_LINES])
    if len(changed) > _SHOWN_LINES:
        yield f"    [... {len(changed) - _SHOWN_LINES} more lines; --json has them all ...]"


def _place(difference: Difference) -> str:
    return "final files" if difference.turn is None else f"turn {difference.turn}"


def _task(config: RunConfig, task_id: str) -> Task:
    for source in (config.tasks.train, config.tasks.heldout):
        for task in resolve_tasks(source):
            if task.task_id == task_id:
                return task
    raise ConfigError(
        f"the task {task_id} is no longer in tasks.train={config.tasks.train} or tasks.heldout={config.tasks.heldout}: "
        "bring the files back that the run was made with"
    )


def _dialogue(config: RunConfig, stage: str) -> DialogueConfig:
    if stage.startswith(_EVALUATION):
        return config.evaluation.dialogue
    for candidate in config.stages:
        if candidate.name == stage and isinstance(candidate, SampleStage | PPOStage):
            return candidate.dialogue
    raise ConfigError(f"the run's config has no stage {stage!r} that rolls out; is this the folder of another run?")
