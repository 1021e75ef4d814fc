"""JudgeCoordinator: from a candidate's files to a Judgement.

    dedupe ─► guard (source) ─► compile ─► guard (symbols) ─► device: checks, clock
                   │ refused       │ compile_error  │ refused      │ DeviceError: again elsewhere, counted

The same task, files, skill and kind of judgement is judged once in a run, also one that is resumed; asked for again
while it is under way, the second asker waits for the first.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

from sandbox import guard
from sandbox.config import JudgeConfig
from sandbox.judge.result import plain_text
from sandbox.judge.verdicts import Verdicts
from sandbox.pool import Device, ProfilerPool
from sandbox.reward import REJECTED
from sandbox.skill import load_skill
from sandbox.types import (
    Artifact,
    Candidate,
    CompileResult,
    DeviceError,
    Judge,
    Judgement,
    Outcome,
    Sanitized,
    Task,
)

Compile = Callable[[str, Candidate], Awaitable[CompileResult]]
Progress = Callable[[int, int, str], None]
"""Called with (tasks done, tasks in all, what was done last)."""
_COMPILES_PER_DEVICE = 2
"""Baselines whose torch.compile is under way beside a device, at least; a compile keeps one core busy, and on a device
of many cores half of them may be."""
_Result = TypeVar("_Result")


class JudgeCoordinator(Judge):
    """Judges many candidates at once over a pool of devices."""

    def __init__(self, compile: Compile, pool: ProfilerPool, config: JudgeConfig, verdicts: Path | None = None) -> None:
        """`verdicts`: a file that outlives the process (sandbox.judge.verdicts)."""
        self._compile = compile
        self._pool = pool
        self._protocol = config.protocol
        self._max_retries = config.max_retries
        self._verdicts = Verdicts(config, verdicts)
        self._judged: dict[str, asyncio.Task[Judgement]] = {}
        self._counts: Counter[str] = Counter()
        self._frozen_s = 0.0
        self._compiling = asyncio.Semaphore(max(_COMPILES_PER_DEVICE, config.cores_per_device // 2) * pool.num_devices)

    async def judge(self, task: Task, candidate: Candidate, *, skill: str, timed: bool = True) -> Judgement:
        """The verdict; the same one for the same files.

        Raises:
            DeviceError: devices failed `max_retries` + 1 times in a row; the candidate was not scored.
            SandboxUnavailableError: the compile service failed.
            TaskError: the reference itself does not run.
        """
        key = self._verdicts.key(task, candidate, skill, timed)
        running = self._judged.get(key)
        if running is None and (verdict := self._verdicts.get(key)) is not None:
            self._counts["remembered"] += 1
            return verdict
        if running is None:
            self._counts["judged"] += 1
            running = asyncio.ensure_future(self._judge(task, candidate, skill, timed))
            self._judged[key] = running
            running.add_done_callback(partial(self._finished, key))
        else:
            self._counts["deduplicated"] += 1
        return await asyncio.shield(running)

    async def sanitize(self, task: Task, candidate: Candidate, *, skill: str) -> Sanitized:
        """compute-sanitizer's findings; raises like `judge`."""
        artifact, _ = await self._compiled(candidate, skill)
        if isinstance(artifact, Judgement):
            return Sanitized(clean=False, text=artifact.message)
        return await self._on_device(lambda device: device.sanitize(task, candidate, artifact, skill=skill))

    async def prepare(self, tasks: list[Task], progress: Progress | None = None) -> dict[str, tuple[float, float]]:
        """Measures every task's baseline ahead; {task_id: (eager_ms, compile_ms)}.

        torch.compile of one task runs beside the timing of another, and stands still while a clock runs.
        """
        times: dict[str, tuple[float, float]] = {}

        async def one(task: Task) -> None:
            async with self._compiling:  # its process waits to be timed, so there are no more than compile at once
                await self._warm(task)
                times[task.task_id] = await self._on_device(lambda device: device.baseline(task))
            if progress is not None:
                eager_ms, compile_ms = times[task.task_id]
                progress(
                    len(times),
                    len(tasks),
                    f"{task.task_id}: eager {eager_ms:.3g} ms, torch.compile {compile_ms:.3g} ms",
                )

        async with asyncio.TaskGroup() as group:
            for task in tasks:
                group.create_task(one(task))
        return times

    async def _warm(self, task: Task) -> None:
        """torch.compile's kernels into the cache; trouble here comes back, counted, when the task is timed."""
        try:
            await (await self._pool.beside()).warm_compile(task)
        except DeviceError:
            self._counts["device_errors"] += 1

    def stats(self) -> dict[str, float]:
        """Counts of this process: judged, deduplicated, remembered (from the file), compiled, compile_cached,
        device_errors, outcome_*; and device_seconds, those in which devices were leased; frozen_seconds, those of them
        in which judgements kept others off the device (baselines left out).
        """
        pool = self._pool
        return {
            **self._counts,
            "devices_replaced": pool.num_replaced,
            "device_seconds": pool.occupancy.seconds,
            "frozen_seconds": self._frozen_s,
        }

    async def close(self) -> None:
        for running in self._judged.values():
            running.cancel()
        await asyncio.gather(*self._judged.values(), return_exceptions=True)
        await self._pool.close()

    def _finished(self, key: str, done: asyncio.Task[Judgement]) -> None:
        if done.cancelled() or done.exception() is not None:
            self._judged.pop(key, None)  # no verdict: the next asker tries again
        else:
            self._counts[f"outcome_{done.result().outcome}"] += 1
            self._verdicts.add(key, done.result())

    async def _judge(self, task: Task, candidate: Candidate, skill: str, timed: bool) -> Judgement:
        artifact, details = await self._compiled(candidate, skill)
        if isinstance(artifact, Judgement):
            return artifact
        judgement = await self._on_device(
            lambda device: device.judge(task, candidate, artifact, skill=skill, timed=timed)
        )
        self._frozen_s += judgement.details.get("turn", {}).get("seconds", 0.0)
        return replace(judgement, details=judgement.details | details)

    async def _compiled(self, candidate: Candidate, skill: str) -> tuple[Artifact | Judgement, dict[str, Any]]:
        """The artifact, or why there is none to run; and what compiling took."""
        loaded = load_skill(skill)
        if self._protocol == "hardened" and (refusal := guard.check_source(loaded, candidate)) is not None:
            return _rejected(Outcome.REFUSED, refusal), {}
        result = await self._compile(skill, candidate)
        self._counts["compile_cached" if result.cached else "compiled"] += 1
        if result.artifact is None:
            return _rejected(Outcome.COMPILE_ERROR, result.message), {}
        if self._protocol == "hardened" and (refusal := guard.check_symbols(loaded, result.artifact)) is not None:
            return _rejected(Outcome.REFUSED, refusal), {}
        return result.artifact, {"compile_s": result.seconds, "compile_cached": result.cached}

    async def _on_device(self, job: Callable[[Device], Awaitable[_Result]]) -> _Result:
        """Runs a job on the next free device, again elsewhere after trouble of ours."""
        for attempt in range(self._max_retries + 1):
            try:
                async with self._pool.lease() as device:
                    return await job(device)
            except DeviceError:
                self._counts["device_errors"] += 1
                if attempt == self._max_retries:
                    raise
        raise AssertionError("unreachable: the last attempt returns or raises")


def _rejected(outcome: Outcome, message: str) -> Judgement:
    return Judgement(outcome=outcome, reward=REJECTED, message=plain_text(message))
