"""ProfilerPool: leases devices to one job each, or a few, first come first served; sick devices are replaced."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Protocol

from sandbox.occupancy import Occupancy
from sandbox.types import Artifact, Candidate, DeviceError, Judgement, Sanitized, Task


class Device(Protocol):
    """A handle on a DeviceJudge, in this process or in an actor. Every method may raise DeviceError."""

    async def judge(
        self, task: Task, candidate: Candidate, artifact: Artifact, *, skill: str, timed: bool
    ) -> Judgement: ...

    async def baseline(self, task: Task) -> tuple[float, float]:
        """(eager_ms, compile_ms)."""
        ...

    async def warm_compile(self, task: Task) -> float:
        """Compiles a task's baseline into the cache, untimed; may run beside other jobs. Seconds."""
        ...

    async def sanitize(self, task: Task, candidate: Candidate, artifact: Artifact, *, skill: str) -> Sanitized: ...

    async def close(self) -> None: ...


DeviceFactory = Callable[[int], Awaitable[Device]]
"""Makes the device of an index; called again for the same index when the device was sick."""


@dataclass(slots=True, eq=False)
class _Made:
    """A device and the jobs on it."""

    device: Device
    jobs: int = 0
    ended: asyncio.Event = field(default_factory=asyncio.Event)


class ProfilerPool:
    """Devices 0 … num_devices - 1, made when first leased."""

    def __init__(self, factory: DeviceFactory, num_devices: int, jobs_per_device: int = 1) -> None:
        """`jobs_per_device`: leases of one device at a time; it has to take them side by side."""
        if num_devices < 1:
            raise ValueError(f"judge.num_devices={num_devices}: at least one device is needed")
        self._factory = factory
        self._devices: list[_Made | None] = [None] * num_devices
        self._sick: list[_Made | None] = [None] * num_devices
        """What was there before, until its last job has ended."""
        self._free: list[int] = list(range(num_devices)) * jobs_per_device
        self._making = [asyncio.Lock() for _ in range(num_devices)]
        self._turn = 0
        self._waiting: asyncio.Queue[asyncio.Future[int]] = asyncio.Queue()
        self.num_replaced = 0
        self.occupancy = Occupancy()
        """Of the devices, by leases."""

    @property
    def num_devices(self) -> int:
        return len(self._devices)

    @asynccontextmanager
    async def lease(self) -> AsyncIterator[Device]:
        """A device for the block. A DeviceError that leaves the block has the device replaced: no more jobs begin on
        it, and the next is made when its last has ended."""
        index = await self._take()
        try:
            with self.occupancy.use():
                made = await self._device(index)
                made.jobs += 1
                try:
                    yield made.device
                except DeviceError:
                    self._retire(index, made)
                    raise
                finally:
                    made.jobs -= 1
                    if self._sick[index] is made and not made.jobs:
                        await self._end(made)
                        self._sick[index] = None
        finally:
            self._give(index)

    async def beside(self) -> Device:
        """A device for work that may run beside its jobs (Device.warm_compile); no lease, in turn."""
        self._turn = (self._turn + 1) % len(self._devices)
        return (await self._device(self._turn)).device

    async def close(self) -> None:
        for index, made in enumerate(self._devices):
            self._devices[index] = None
            if made is not None:
                await self._end(made)

    async def _device(self, index: int) -> _Made:
        async with self._making[index]:
            sick = self._sick[index]
            if sick is not None:
                await sick.ended.wait()
            made = self._devices[index]
            if made is None:
                made = self._devices[index] = _Made(await self._factory(index))
            return made

    async def _take(self) -> int:
        if self._free:
            return self._free.pop(0)
        turn: asyncio.Future[int] = asyncio.get_running_loop().create_future()
        self._waiting.put_nowait(turn)
        try:
            return await turn
        except asyncio.CancelledError:
            if turn.done() and not turn.cancelled():  # the device was handed over while the waiter was cancelled
                self._give(turn.result())
            raise

    def _give(self, index: int) -> None:
        while not self._waiting.empty():
            turn = self._waiting.get_nowait()
            if not turn.done():
                turn.set_result(index)
                return
        self._free.append(index)

    def _retire(self, index: int, made: _Made) -> None:
        if self._devices[index] is made:  # the first of its jobs to find out
            self._devices[index], self._sick[index] = None, made
            self.num_replaced += 1

    async def _end(self, made: _Made) -> None:
        try:
            with contextlib.suppress(DeviceError):  # it is being thrown away, perhaps because it is sick
                await made.device.close()
        finally:
            made.ended.set()
