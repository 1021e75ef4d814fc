"""How much of a pool is in use."""

from __future__ import annotations

import asyncio

import pytest
from test_pool import Factory

from sandbox.occupancy import Occupancy
from sandbox.pool import ProfilerPool
from sandbox.types import DeviceError


def test_user_seconds_are_summed_also_while_somebody_uses_it_and_when_one_fails():
    now = [0.0]
    occupancy = Occupancy(clock=lambda: now[0])
    with occupancy.use():
        now[0] = 2.0
        with pytest.raises(RuntimeError), occupancy.use():
            now[0] = 5.0
            assert occupancy.seconds == 2 + 2 * 3
            raise RuntimeError
        now[0] = 6.0
    now[0] = 9.0
    assert occupancy.seconds == 2 + 2 * 3 + 1


async def test_a_pool_counts_leases_and_not_those_who_wait_for_one():
    pool = ProfilerPool(Factory(), 1)

    async def job() -> None:
        async with pool.lease():
            await asyncio.sleep(0.1)

    await asyncio.gather(job(), job(), job())
    assert 0.3 <= pool.occupancy.seconds < 0.5
    with pytest.raises(DeviceError):
        async with pool.lease():
            raise DeviceError("sick")
    before = pool.occupancy.seconds
    await asyncio.sleep(0.05)
    assert pool.occupancy.seconds == before
