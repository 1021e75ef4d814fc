"""The JudgeActor of a run, and the judge that its other processes hold."""

from __future__ import annotations

import asyncio
import os
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import ray
import ray.exceptions
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from sandbox.actors.asking import CLOSE_LIMIT_S, LostError, ask, cause, summary
from sandbox.actors.compiling import CompileFleet
from sandbox.actors.devices import ActorDevice
from sandbox.config import CompileConfig, JudgeConfig
from sandbox.judge.coordinator import JudgeCoordinator, Progress
from sandbox.pool import ProfilerPool
from sandbox.types import (
    Candidate,
    CompileResult,
    DeviceError,
    Judge,
    Judgement,
    SandboxUnavailableError,
    Sanitized,
    Task,
)

MAX_REQUESTS = 4096
"""Under way in one JudgeActor; more wait in Ray's queue."""


class _JudgeProcess:
    """Builds a JudgeCoordinator over actors inside the actor's process; forwards."""

    def __init__(
        self,
        judge: JudgeConfig,
        compile: CompileConfig,
        registry_dir: Path,
        verdicts: Path | None,
        device_options: Sequence[dict[str, Any]],
    ) -> None:
        async def make_device(index: int) -> ActorDevice:
            return await ActorDevice.start(
                judge, index, registry_dir, device_options[index] if device_options else None
            )

        self._fleet = CompileFleet(compile, max_retries=judge.max_retries)
        self._coordinator = JudgeCoordinator(
            self._fleet.compile,
            ProfilerPool(make_device, judge.num_devices, judge.jobs_per_device),
            judge,
            verdicts,
        )

    async def judge(self, task: Task, candidate: Candidate, skill: str, timed: bool) -> Judgement:
        return await self._coordinator.judge(task, candidate, skill=skill, timed=timed)

    async def sanitize(self, task: Task, candidate: Candidate, skill: str) -> Sanitized:
        return await self._coordinator.sanitize(task, candidate, skill=skill)

    async def prepare(self, task: Task) -> tuple[float, float]:
        try:
            return (await self._coordinator.prepare([task]))[task.task_id]
        except ExceptionGroup as group:  # of one, because it was one task: callers catch its kind
            raise group.exceptions[0] from None

    async def compile(self, skill: str, candidate: Candidate) -> CompileResult:
        return await self._fleet.compile(skill, candidate)

    async def stats(self) -> dict[str, float]:
        return self._coordinator.stats() | {"compile_workers_replaced": self._fleet.num_replaced}

    async def close(self) -> None:
        await self._coordinator.close()
        self._fleet.close()


JudgeActor = ray.remote(num_cpus=0)(_JudgeProcess)


class RemoteJudge(Judge):
    """The judge of a run, from any process of it; may be sent to other actors."""

    def __init__(self, handle: Any, *, max_retries: int) -> None:
        self._handle, self._max_retries = handle, max_retries

    async def judge(self, task: Task, candidate: Candidate, *, skill: str, timed: bool = True) -> Judgement:
        """Raises what JudgeCoordinator.judge raises; DeviceError also where the JudgeActor is lost again and again."""
        return await self._repeated(self._handle.judge, task, candidate, skill, timed)

    async def sanitize(self, task: Task, candidate: Candidate, *, skill: str) -> Sanitized:
        """Raises like `judge`."""
        return await self._repeated(self._handle.sanitize, task, candidate, skill)

    async def prepare(self, tasks: list[Task], progress: Progress | None = None) -> dict[str, tuple[float, float]]:
        """Measures baselines ahead, as many at once as there are devices; {task_id: (eager_ms, compile_ms)}."""
        times: dict[str, tuple[float, float]] = {}

        async def one(task: Task) -> None:
            eager_ms, compile_ms = times[task.task_id] = await self._repeated(self._handle.prepare, task)
            if progress is not None:
                text = f"{task.task_id}: eager {eager_ms:.3g} ms, torch.compile {compile_ms:.3g} ms"
                progress(len(times), len(tasks), text)

        jobs = [asyncio.create_task(one(task)) for task in tasks]
        try:
            await asyncio.gather(*jobs)
        finally:
            for job in jobs:  # after the first failure; those done do not mind
                job.cancel()
        return times

    def compile(self, skill: str, candidate: Candidate) -> CompileResult:
        """Compiles alone. Blocks: for threads (WorkdirService calls it in one), never for an event loop's own."""
        try:
            # ray.get would warn, in a thread of an async actor, that it blocks the actor's loop; this does not
            return self._handle.compile.remote(skill, candidate).future().result()
        except ray.exceptions.RayTaskError as error:
            raise cause(error) from None
        except ray.exceptions.RayError as error:
            raise SandboxUnavailableError(summary(error)) from error

    async def stats(self) -> dict[str, float]:
        """Counts since the JudgeActor (re)started."""
        return await self._repeated(self._handle.stats)

    async def close(self) -> None:
        """Ends the judge with its actors."""
        try:
            await ask(self._handle.close, died=LostError, limit_s=2 * CLOSE_LIMIT_S)
        except LostError:
            pass  # what it had started ends with it
        finally:
            ray.kill(self._handle)

    async def _repeated(self, method: Any, *args: Any) -> Any:
        for attempt in range(self._max_retries + 1):
            try:
                return await ask(method, *args, died=LostError)
            except LostError as error:
                if attempt == self._max_retries:
                    raise DeviceError(f"the judge was lost {attempt + 1} times, the last time: {error}") from error
                await asyncio.sleep(2.0**attempt)  # Ray is restarting it
        raise AssertionError("unreachable: the last attempt returns or raises")


def start_judge(
    judge: JudgeConfig,
    compile: CompileConfig,
    *,
    registry_dir: Path | None = None,
    verdicts: Path | None = None,
    device_options: Sequence[dict[str, Any]] = (),
) -> RemoteJudge:
    """Starts the judge of a run; returns at once, devices and compile workers start with the first work.

    `registry_dir`: of the quiet lease (sandbox.quiet), the same on every machine; by default a folder of this user's.
    `verdicts`: a file of the run's (sandbox.judge.verdicts), on this machine or shared; the actor stays beside it.
    `device_options`: Ray's options for the actor of each profiler device, such as its share of a GPU.
    """
    registry_dir = registry_dir or Path(tempfile.gettempdir()) / f"jaxagent-quiet-{os.getuid()}"
    here = NodeAffinitySchedulingStrategy(ray.get_runtime_context().get_node_id(), soft=True)
    actor = JudgeActor.options(max_concurrency=MAX_REQUESTS, max_restarts=-1, scheduling_strategy=here)
    handle = actor.remote(judge, compile, registry_dir, verdicts, device_options)
    return RemoteJudge(handle, max_retries=judge.max_retries)
