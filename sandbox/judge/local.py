"""LocalJudge: the judge without Ray. Devices and compile service in one process, their blocking calls in threads."""

from __future__ import annotations

import asyncio
import os
import tempfile
from pathlib import Path

from sandbox.compile import CompileService
from sandbox.config import CompileConfig, JudgeConfig
from sandbox.judge.coordinator import JudgeCoordinator
from sandbox.judge.device import DeviceJudge
from sandbox.judge.spec import device_spec
from sandbox.pool import Device, ProfilerPool
from sandbox.quiet import QuietLease
from sandbox.types import Artifact, Candidate, CompileResult, Judgement, Sanitized, Task


class LocalDevice:
    """A DeviceJudge of this process, its blocking calls in threads."""

    def __init__(self, judge: DeviceJudge) -> None:
        self._judge = judge

    async def judge(
        self, task: Task, candidate: Candidate, artifact: Artifact, *, skill: str, timed: bool
    ) -> Judgement:
        return await asyncio.to_thread(self._judge.judge, task, candidate, artifact, skill=skill, timed=timed)

    async def baseline(self, task: Task) -> tuple[float, float]:
        return await asyncio.to_thread(self._judge.baseline, task)

    async def warm_compile(self, task: Task) -> float:
        return await asyncio.to_thread(self._judge.warm_compile, task)

    async def sanitize(self, task: Task, candidate: Candidate, artifact: Artifact, *, skill: str) -> Sanitized:
        return await asyncio.to_thread(self._judge.sanitize, task, candidate, artifact, skill=skill)

    async def close(self) -> None:
        await asyncio.to_thread(self._judge.close)


class LocalJudge(JudgeCoordinator):
    """The whole judge in one process, without Ray: what `jaxagent judge` uses."""

    def __init__(self, judge: JudgeConfig, compile: CompileConfig, *, registry_dir: Path | None = None) -> None:
        service = CompileService(compile)
        self._registry = registry_dir or Path(tempfile.gettempdir()) / f"jaxagent-quiet-{os.getuid()}"

        async def compile_in_thread(skill: str, candidate: Candidate) -> CompileResult:
            return await asyncio.to_thread(service.compile, skill, candidate)

        async def make_device(index: int) -> Device:
            return LocalDevice(await asyncio.to_thread(make_device_judge, judge, index, self._registry))

        super().__init__(
            compile_in_thread,
            ProfilerPool(make_device, judge.num_devices, judge.jobs_per_device),
            judge,
        )


def make_device_judge(config: JudgeConfig, index: int, registry_dir: Path, *, gpu: int | None = None) -> DeviceJudge:
    """DeviceJudge `index` of this machine, ready to judge; `gpu` as of device_spec. Raises DeviceError."""
    spec = device_spec(config, index, gpu=gpu)
    judge = DeviceJudge(config, spec, QuietLease(registry_dir) if config.quiet else None)
    try:
        judge.wait_ready()
    except BaseException:
        judge.close()
        raise
    return judge
