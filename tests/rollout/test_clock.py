from __future__ import annotations

import asyncio

import pytest

from rollout.clock import DialogueClock


async def test_the_clock_starts_with_its_first_use_and_ends_what_runs_too_long() -> None:
    clock = DialogueClock(0.2)
    await asyncio.sleep(0.3)
    assert not clock.expired
    with pytest.raises(TimeoutError):
        async with clock.limit() as timeout:
            await asyncio.sleep(5)
    assert timeout.expired() and clock.expired


async def test_a_held_clock_stands_still_even_under_a_running_limit() -> None:
    clock = DialogueClock(0.5)
    with pytest.raises(TimeoutError):
        async with clock.limit() as timeout:
            await asyncio.sleep(0.2)
            with clock.hold():
                await asyncio.sleep(0.6)
            assert not timeout.expired() and 0.0 < clock.remaining() < 0.35
            await asyncio.sleep(5)
    assert timeout.expired()


async def test_overlapping_holds_end_with_the_last_one() -> None:
    clock = DialogueClock(0.2)
    first, second = clock.hold(), clock.hold()
    first.__enter__()
    second.__enter__()
    await asyncio.sleep(0.3)
    first.__exit__(None, None, None)
    await asyncio.sleep(0.3)
    assert clock.remaining() == pytest.approx(0.2, abs=0.01)
    second.__exit__(None, None, None)
    await asyncio.sleep(0.3)
    assert clock.expired


async def test_a_limit_that_is_entered_while_the_clock_is_held_gets_its_end_afterwards() -> None:
    clock = DialogueClock(0.2)
    hold = clock.hold()
    hold.__enter__()
    with pytest.raises(TimeoutError):
        async with clock.limit():
            await asyncio.sleep(0.4)
            hold.__exit__(None, None, None)
            await asyncio.sleep(5)
