"""ProfilerPool: one job a device at a time, or a few, first come first served, sick devices replaced."""

from __future__ import annotations

import asyncio

import pytest

from sandbox.pool import ProfilerPool
from sandbox.types import DeviceError


class CountingDevice:
    """A device that only knows who made it and whether it was closed."""

    def __init__(self, index: int, generation: int) -> None:
        self.index, self.generation, self.closed = index, generation, False

    async def close(self) -> None:
        self.closed = True


class Factory:
    def __init__(self) -> None:
        self.made: list[CountingDevice] = []

    async def __call__(self, index: int) -> CountingDevice:
        await asyncio.sleep(0)
        self.made.append(CountingDevice(index, len(self.made)))
        return self.made[-1]


async def test_jobs_queue_first_come_first_served_and_never_share_a_device():
    pool, order, busy = ProfilerPool(Factory(), 2), [], set()

    async def job(number: int) -> None:
        async with pool.lease() as device:
            assert device.index not in busy
            busy.add(device.index)
            order.append(number)
            await asyncio.sleep(0.01)
            busy.remove(device.index)

    await asyncio.gather(*(job(number) for number in range(9)))
    assert order == list(range(9))


async def test_a_device_is_made_once_and_replaced_after_a_device_error():
    factory = Factory()
    pool = ProfilerPool(factory, 1)
    async with pool.lease() as first:
        pass
    with pytest.raises(DeviceError):
        async with pool.lease() as again:
            assert again is first
            raise DeviceError("it fell off the bus")
    assert first.closed and pool.num_replaced == 1
    async with pool.lease() as second:
        assert second.generation == 1
    await pool.close()
    assert second.closed and pool.num_replaced == 1


async def test_an_ordinary_error_leaves_the_device_in_place():
    pool = ProfilerPool(Factory(), 1)
    async with pool.lease() as first:
        pass
    with pytest.raises(KeyError):
        async with pool.lease():
            raise KeyError("ours")
    async with pool.lease() as second:
        assert second is first


async def test_a_cancelled_waiter_does_not_lose_the_device():
    pool = ProfilerPool(Factory(), 1)
    gate = asyncio.Event()

    async def hold() -> None:
        async with pool.lease():
            await gate.wait()

    async def want() -> int:
        async with pool.lease() as device:
            return device.index

    holder = asyncio.create_task(hold())
    await asyncio.sleep(0.01)
    waiters = [asyncio.create_task(want()) for _ in range(3)]
    await asyncio.sleep(0.01)
    waiters[0].cancel()
    gate.set()
    await holder
    waiters[1].cancel()  # possibly after the device was handed to it
    assert await asyncio.wait_for(waiters[2], 1) == 0


async def test_a_factory_that_fails_frees_the_place():
    calls = []

    async def make(index: int) -> CountingDevice:
        calls.append(index)
        if len(calls) == 1:
            raise DeviceError("no such device")
        return CountingDevice(index, 0)

    pool = ProfilerPool(make, 1)
    with pytest.raises(DeviceError):
        async with pool.lease():
            raise AssertionError("unreachable")
    async with pool.lease() as device:
        assert device.index == 0


async def test_a_device_takes_as_many_jobs_as_it_was_said_to():
    factory = Factory()
    pool, most, now = ProfilerPool(factory, 2, jobs_per_device=3), 0, 0

    async def job() -> None:
        nonlocal most, now
        async with pool.lease():
            now += 1
            most = max(most, now)
            await asyncio.sleep(0.01)
            now -= 1

    await asyncio.gather(*(job() for _ in range(20)))
    assert most == 6 and len(factory.made) == 2


async def test_a_sick_device_is_left_by_its_other_jobs_before_the_next_is_made():
    factory, events = Factory(), []
    pool, go_on = ProfilerPool(factory, 1, jobs_per_device=3), asyncio.Event()

    async def goes_on() -> None:
        async with pool.lease() as device:
            await go_on.wait()
            events.append(f"{device.generation} {device.closed}")

    async def fails() -> None:
        with pytest.raises(DeviceError):
            async with pool.lease() as device:
                await asyncio.sleep(0.01)
                raise DeviceError(f"{device.generation} is sick")

    async def comes_later() -> None:
        async with pool.lease() as device:
            events.append(f"later on {device.generation}")

    jobs = [asyncio.create_task(goes_on()), asyncio.create_task(fails()), asyncio.create_task(fails())]
    await asyncio.gather(*jobs[1:])
    assert pool.num_replaced == 1 and not factory.made[0].closed
    later = asyncio.create_task(comes_later())
    await asyncio.sleep(0.01)
    assert events == [] and len(factory.made) == 1
    go_on.set()
    await asyncio.gather(jobs[0], later)
    assert events == ["0 False", "later on 1"] and factory.made[0].closed and not factory.made[1].closed
    await pool.close()
    assert factory.made[1].closed and pool.num_replaced == 1


def test_no_devices_is_a_mistake():
    with pytest.raises(ValueError, match="num_devices=0"):
        ProfilerPool(Factory(), 0)
