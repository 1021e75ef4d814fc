"""Ray actors of the sandbox: process boundaries around CompileService, DeviceJudge and JudgeCoordinator, and no more.

    RemoteJudge ──judge(task, candidate)──► JudgeActor ──► CompileActor x num_workers      sources -> Artifact
    (any process)                             │ dedupe, retries
                                              └─────────► ProfilerActor x num_devices      Artifact -> Judgement

A dead CompileActor or ProfilerActor is replaced by the JudgeActor, and the work goes to the next one; a dead JudgeActor
is restarted by Ray and asked again. All of it is counted, none of it is scored.
"""

from __future__ import annotations

import asyncio
import os
import tempfile
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path
from typing import Any

import ray
import ray.exceptions
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from sandbox.compile import CompileService
from sandbox.config import CompileConfig, JudgeConfig
from sandbox.judge.coordinator import JudgeCoordinator, Progress, make_device_judge
from sandbox.pool import ProfilerPool
from sandbox.types import (
    Artifact,
    Candidate,
    CompileResult,
    DeviceError,
    Judge,
    Judgement,
    SandboxUnavailableError,
    Sanitized,
    Task,
)

PROFILER_RESOURCE = "profiler"
"""`ray start --resources '{"profiler": 8}'` names the machines for devices; without it they run where Ray likes."""
MAX_REQUESTS = 4096
"""Under way in one JudgeActor; more wait in Ray's queue."""
_DEVICE_LIMIT_S = 900.0  # far above any honest job (a first torch.compile included): the actor hangs
_CLOSE_LIMIT_S = 10.0


class _CompileProcess:
    """Builds a CompileService inside the actor's process; forwards."""

    def __init__(self, config: CompileConfig) -> None:
        self._service = CompileService(config)

    def compile(self, skill: str, candidate: Candidate) -> CompileResult:
        return self._service.compile(skill, candidate)


class _ProfilerProcess:
    """Builds the DeviceJudge of one device inside the actor's process; forwards."""

    def start(self, config: JudgeConfig, index: int, registry_dir: Path) -> None:
        # not in __init__, whose exceptions Ray turns into a dead actor without their type
        if config.device == "cpu":
            self._judge = make_device_judge(config, index, registry_dir)
        else:  # Ray shows this actor the one GPU it has picked; the cores go by that GPU's number on its machine
            self._judge = make_device_judge(config, int(ray.get_gpu_ids()[0]), registry_dir, gpu=0)

    def judge(self, task: Task, candidate: Candidate, artifact: Artifact, *, skill: str, timed: bool) -> Judgement:
        return self._judge.judge(task, candidate, artifact, skill=skill, timed=timed)

    def baseline(self, task: Task) -> tuple[float, float]:
        return self._judge.baseline(task)

    def sanitize(self, task: Task, candidate: Candidate, artifact: Artifact, *, skill: str) -> Sanitized:
        return self._judge.sanitize(task, candidate, artifact, skill=skill)

    @ray.method(concurrency_group="beside")
    def warm_compile(self, task: Task) -> float:
        return self._judge.warm_compile(task)

    def process_id(self) -> int:
        return os.getpid()

    def close(self) -> None:
        self._judge.close()


CompileActor = ray.remote(num_cpus=0)(_CompileProcess)
_profiler_options: dict[str, Any] = {"num_cpus": 0, "concurrency_groups": {"beside": 8}}
ProfilerActor = ray.remote(**_profiler_options)(_ProfilerProcess)


class ActorDevice:
    """sandbox.pool.Device over a ProfilerActor; a lost actor is a DeviceError, and the pool makes a new one."""

    def __init__(self, handle: Any, index: int) -> None:
        self._handle, self._index = handle, index

    @classmethod
    async def start(
        cls, config: JudgeConfig, index: int, registry_dir: Path, options: dict[str, Any] | None = None
    ) -> ActorDevice:
        """`options`: of its actor, where its place is decided elsewhere; by default it gets a GPU of its own."""
        if options is None:
            resources = {PROFILER_RESOURCE: 1} if PROFILER_RESOURCE in ray.cluster_resources() else None
            options = {"resources": resources, "num_gpus": 1 if config.device == "cuda" else 0}
        actor = ProfilerActor.options(max_concurrency=config.jobs_per_device, **options)
        device = cls(actor.remote(), index)
        try:
            await device._call("start", config, index, registry_dir)
        except BaseException:
            ray.kill(device._handle)
            raise
        return device

    async def judge(
        self, task: Task, candidate: Candidate, artifact: Artifact, *, skill: str, timed: bool
    ) -> Judgement:
        return await self._call("judge", task, candidate, artifact, skill=skill, timed=timed)

    async def baseline(self, task: Task) -> tuple[float, float]:
        return await self._call("baseline", task)

    async def warm_compile(self, task: Task) -> float:
        return await self._call("warm_compile", task)

    async def sanitize(self, task: Task, candidate: Candidate, artifact: Artifact, *, skill: str) -> Sanitized:
        return await self._call("sanitize", task, candidate, artifact, skill=skill)

    async def process_id(self) -> int:
        return await self._call("process_id")

    async def close(self) -> None:
        """Ends the actor; one that is dead or hangs gets no time to tidy up, its children end with it."""
        try:
            await _ask(self._handle.close, died=DeviceError, limit_s=_CLOSE_LIMIT_S)
        finally:
            ray.kill(self._handle)

    async def _call(self, method: str, *args: Any, **kwargs: Any) -> Any:
        try:
            remote = getattr(self._handle, method)
            return await _ask(remote, *args, died=DeviceError, limit_s=_DEVICE_LIMIT_S, **kwargs)
        except DeviceError as error:
            raise DeviceError(f"profiler device {self._index}, {method}: {error}") from error


class CompileFleet:
    """CompileActors, each with one candidate at a time; a dead one is replaced and its candidate compiled elsewhere."""

    def __init__(self, config: CompileConfig, *, max_retries: int) -> None:
        self._config = config.model_copy(update={"num_workers": 1})
        self._max_retries = max_retries
        self._idle: asyncio.Queue[Any] = asyncio.Queue()
        self.num_replaced = 0
        for _ in range(config.num_workers):
            self._idle.put_nowait(None)  # made when first needed

    async def compile(self, skill: str, candidate: Candidate) -> CompileResult:
        """Raises SandboxUnavailableError, the actor's own or after `max_retries` + 1 lost actors."""
        for attempt in range(self._max_retries + 1):
            actor: Any = await self._idle.get()
            try:
                actor = actor or CompileActor.options(scheduling_strategy="SPREAD").remote(self._config)
                limit_s = self._config.timeout_s + 120.0  # its own limit, and a start of the actor
                return await _ask(actor.compile, skill, candidate, died=_LostError, limit_s=limit_s)
            except _LostError as error:
                ray.kill(actor)
                actor = None
                self.num_replaced += 1
                if attempt == self._max_retries:
                    text = f"{attempt + 1} compile workers were lost over one candidate, the last one: {error}"
                    raise SandboxUnavailableError(text) from error
            finally:
                self._idle.put_nowait(actor)
        raise AssertionError("unreachable: the last attempt returns or raises")

    def close(self) -> None:
        while not self._idle.empty():
            actor = self._idle.get_nowait()
            if actor is not None:
                ray.kill(actor)


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
            raise _cause(error) from None
        except ray.exceptions.RayError as error:
            raise SandboxUnavailableError(_summary(error)) from error

    async def stats(self) -> dict[str, float]:
        """Counts since the JudgeActor (re)started."""
        return await self._repeated(self._handle.stats)

    async def close(self) -> None:
        """Ends the judge with its actors."""
        try:
            await _ask(self._handle.close, died=_LostError, limit_s=2 * _CLOSE_LIMIT_S)
        except _LostError:
            pass  # what it had started ends with it
        finally:
            ray.kill(self._handle)

    async def _repeated(self, method: Any, *args: Any) -> Any:
        for attempt in range(self._max_retries + 1):
            try:
                return await _ask(method, *args, died=_LostError)
            except _LostError as error:
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


class _LostError(Exception):
    """A remote call got no answer: the actor or its node died, or it took too long."""


async def _ask(
    method: Any, *args: Any, died: Callable[[str], Exception], limit_s: float | None = None, **kwargs: Any
) -> Any:
    """Awaits `method.remote(...)`: its own exceptions come back plain, a lost or silent actor as `died`."""
    reference: Awaitable[Any] = method.remote(*args, **kwargs)
    try:
        return await asyncio.wait_for(reference, limit_s)
    except TimeoutError as error:
        raise died(f"no answer within {limit_s:g} s") from error
    except ray.exceptions.RayTaskError as error:
        raise _cause(error) from None
    except ray.exceptions.RayError as error:
        raise died(_summary(error)) from error


def _cause(error: ray.exceptions.RayTaskError) -> Exception:
    """The exception that the remote method raised: what callers catch, without Ray's own class around it."""
    return error.cause if isinstance(error.cause, Exception) else error


def _summary(error: Exception) -> str:
    return f"{type(error).__name__}: {str(error).splitlines()[0]}"
