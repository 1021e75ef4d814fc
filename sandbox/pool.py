"""ProfilerPool: leases devices, one job a device at a time, first come first served; sick devices are replaced."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
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


class ProfilerPool:
    """Devices 0 … num_devices - 1, made when first leased."""

    def __init__(self, factory: DeviceFactory, num_devices: int) -> None:
        if num_devices < 1:
            raise ValueError(f"judge.num_devices={num_devices}: at least one device is needed")
        self._factory = factory
        self._devices: list[Device | None] = [None] * num_devices
        self._free: list[int] = list(range(num_devices))
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
        """A device for the block alone. A DeviceError that leaves the block has the device replaced."""
        index = await self._take()
        try:
            with self.occupancy.use():
                yield await self._device(index)
        except DeviceError:
            await self._drop(index)
            raise
        finally:
            self._give(index)

    async def beside(self) -> Device:
        """A device for work that may run beside its jobs (Device.warm_compile); no lease, in turn."""
        self._turn = (self._turn + 1) % len(self._devices)
        return await self._device(self._turn)

    async def close(self) -> None:
        for index in range(len(self._devices)):
            await self._drop(index, count=False)

    async def _device(self, index: int) -> Device:
        async with self._making[index]:
            device = self._devices[index]
            if device is None:
                device = self._devices[index] = await self._factory(index)
            return device

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

    async def _drop(self, index: int, *, count: bool = True) -> None:
        device, self._devices[index] = self._devices[index], None
        if device is None:
            return
        self.num_replaced += count
        with contextlib.suppress(DeviceError):  # it is being thrown away because it is sick
            await device.close()
