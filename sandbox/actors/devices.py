"""ProfilerActors, and the device that each of them is to a pool."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import ray

from sandbox.actors.asking import CLOSE_LIMIT_S, ask
from sandbox.config import JudgeConfig
from sandbox.judge.local import make_device_judge
from sandbox.types import Artifact, Candidate, DeviceError, Judgement, Sanitized, Task

PROFILER_RESOURCE = "profiler"
"""`ray start --resources '{"profiler": 8}'` names the machines for devices; without it they run where Ray likes."""
_DEVICE_LIMIT_S = 900.0  # far above any honest job (a first torch.compile included): the actor hangs


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
            await ask(self._handle.close, died=DeviceError, limit_s=CLOSE_LIMIT_S)
        finally:
            ray.kill(self._handle)

    async def _call(self, method: str, *args: Any, **kwargs: Any) -> Any:
        try:
            remote = getattr(self._handle, method)
            return await ask(remote, *args, died=DeviceError, limit_s=_DEVICE_LIMIT_S, **kwargs)
        except DeviceError as error:
            raise DeviceError(f"profiler device {self._index}, {method}: {error}") from error
