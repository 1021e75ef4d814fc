"""Kernels that are stored already, and their judgement: `--policy kernels:DIR`.

DIR/level_1_problem_7_sample_0_kernel.py          one file in place of model_new.py, as KernelBench stores samples
DIR/level_1_problem_7_sample_0/                   model_new.py and kernels/
DIR/TASK_ID/, DIR/TASK_ID/sample_2/               the same by the task's id; without `sample_` it is sample 0
"""

from __future__ import annotations

import asyncio
import hashlib
import json
import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from jaxagent.config.load import ConfigError
from jaxagent.evaluation.concurrently import concurrently
from jaxagent.evaluation.problems import Problem, number_problems
from jaxagent.run.progress import Progress
from rollout.store import TrajectoryStore
from rollout.types import StopReason, Trajectory
from sandbox.reward import REJECTED
from sandbox.skill import collect_candidate, collect_model_new
from sandbox.types import Candidate, Judge, Judgement, Outcome, Task

STAGE = "kernels"
_NAME = re.compile(r"level_(\d+)_problem_(\d+)_sample_(\d+)(_kernel\.py)?")


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredKernel:
    """One sample of one task."""

    task: Task
    sample_index: int
    candidate: Candidate

    @property
    def trajectory_id(self) -> str:
        """Of its content as well: a file that has changed is another sample, and judged again."""
        content = json.dumps([self.task.code, sorted(self.candidate.files.items())])
        return f"{self.task.task_id}/{self.sample_index}/{hashlib.sha256(content.encode()).hexdigest()[:12]}"


def find_kernels(folder: Path, tasks: Sequence[Task]) -> list[StoredKernel]:
    """The stored kernels of `tasks`, by task and sample.

    Raises ConfigError where there is none at all, or where one sample stands there twice.
    """
    by_problem = {problem: task for task, problem in zip(tasks, number_problems(tasks).values(), strict=True)}
    found = [*_by_number(folder, by_problem), *_by_task_id(folder, tasks)]
    if not found:
        raise ConfigError(
            f"kernels:{folder}: no kernel of the {len(tasks)} tasks is there; expected names are "
            f"level_L_problem_P_sample_S_kernel.py, or folders TASK_ID (the first task is {tasks[0].task_id}) with "
            "model_new.py and kernels/"
        )
    seen: set[tuple[str, int]] = set()
    for kernel in found:
        if (key := (kernel.task.task_id, kernel.sample_index)) in seen:
            raise ConfigError(f"kernels:{folder}: sample {key[1]} of task {key[0]} stands there twice; remove one")
        seen.add(key)
    place = {task.task_id: number for number, task in enumerate(tasks)}
    return sorted(found, key=lambda kernel: (place[kernel.task.task_id], kernel.sample_index))


async def judge_stored(
    kernels: Sequence[StoredKernel],
    store: TrajectoryStore,
    *,
    judge: Judge,
    skill: str,
    at_once: int,
    progress: Progress,
) -> None:
    """Judges the kernels that `store` does not hold yet, each as a trajectory without turns.

    Raises DeviceError and SandboxUnavailableError after the judge's own repeats.
    """
    missing = [kernel for kernel in kernels if kernel.trajectory_id not in store]
    free = asyncio.Semaphore(at_once)
    with progress.counting("kernels", len(kernels), done=len(kernels) - len(missing)) as advance:

        async def one(kernel: StoredKernel) -> None:
            async with free:
                judgement = await judge.judge(kernel.task, kernel.candidate, skill=skill, timed=True)
            store.append(_trajectory(kernel.task, kernel.sample_index, kernel.trajectory_id, judgement))
            advance()

        await concurrently(one(kernel) for kernel in missing)


def with_missing(trajectories: Iterable[Trajectory], tasks: Sequence[Task]) -> list[Trajectory]:
    """Adds a failed sample for every task that has no kernel at all: a table over fewer tasks would flatter."""
    present = list(trajectories)
    known = {trajectory.task_id for trajectory in present}
    message = "no kernel is stored for this task"
    failed = Judgement(outcome=Outcome.REFUSED, reward=REJECTED, message=message)
    return present + [
        _trajectory(task, 0, f"{task.task_id}/0/missing", failed) for task in tasks if task.task_id not in known
    ]


def _trajectory(task: Task, sample_index: int, trajectory_id: str, judgement: Judgement) -> Trajectory:
    return Trajectory(
        trajectory_id=trajectory_id,
        task_id=task.task_id,
        sample_index=sample_index,
        stage=STAGE,
        seed=0,
        turns=[],
        judgement=judgement,
        stop_reason=StopReason.FINISHED,
    )


def _by_number(folder: Path, tasks: dict[Problem, Task]) -> Iterator[StoredKernel]:
    """Files and folders in KernelBench's naming. A task that belongs to no level answers to its number in any."""
    for path in sorted(folder.iterdir()):
        if (match := _NAME.fullmatch(path.name)) is None:
            continue
        level, number, sample_index = (int(part) for part in match.groups()[:3])
        task = tasks.get(Problem(level, number)) or tasks.get(Problem(None, number))
        if task is None:
            continue
        if match[4] and path.is_file():
            yield StoredKernel(task=task, sample_index=sample_index, candidate=collect_model_new(path))
        elif not match[4] and (path / "model_new.py").exists():
            yield StoredKernel(task=task, sample_index=sample_index, candidate=collect_candidate(path))


def _by_task_id(folder: Path, tasks: Sequence[Task]) -> Iterator[StoredKernel]:
    for task in tasks:
        own = folder / task.task_id
        if (own / "model_new.py").exists():
            yield StoredKernel(task=task, sample_index=0, candidate=collect_candidate(own))
        for path in sorted(own.glob("sample_*")):
            number = path.name.removeprefix("sample_")
            if number.isdigit() and (path / "model_new.py").exists():
                yield StoredKernel(task=task, sample_index=int(number), candidate=collect_candidate(path))
