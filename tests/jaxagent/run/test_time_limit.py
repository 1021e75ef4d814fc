"""What waits is given up when time is up; errors of what is waited for stay what they are."""

from __future__ import annotations

import asyncio

import pytest

from jaxagent.cli.exits import TIME_UP, exit_code
from jaxagent.run.time_limit import TimeLimit, TimeUpError


def test_waiting_ends_with_the_time_and_cancels_what_was_waited_for():
    ended: list[str] = []

    async def rollouts() -> None:
        try:
            await asyncio.sleep(60)
        finally:
            ended.append("closed")

    async def session() -> None:
        limit = TimeLimit(0.05)
        limit.check()
        assert await limit.wait(asyncio.sleep(0, "batch")) == "batch"
        with pytest.raises(TimeUpError, match="--stop-after 0.05: the time of this session is over"):
            await limit.wait(rollouts())
        with pytest.raises(TimeUpError):
            limit.check()

    asyncio.run(session())
    assert ended == ["closed"]


def test_a_time_out_of_something_else_is_not_taken_for_the_end_of_the_session():
    async def slow() -> None:
        raise TimeoutError("an engine")

    async def session() -> None:
        with pytest.raises(TimeoutError, match="an engine"):
            await TimeLimit(60).wait(slow())
        with pytest.raises(TimeoutError, match="an engine"):
            await TimeLimit().wait(slow())

    asyncio.run(session())


def test_a_session_that_was_over_has_an_exit_code_of_its_own():
    assert exit_code(TimeUpError("over")) == TIME_UP not in (0, 1, 2, 3)
