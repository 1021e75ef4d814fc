"""Progress that crosses a process: what is said and counted there is shown here."""

from __future__ import annotations

import asyncio
import io

import pytest
from rich.console import Console

from jaxagent.evaluation.concurrently import concurrently
from jaxagent.run.progress import RunProgress
from jaxagent.run.progress_relay import Event, ProgressRelay, followed


def test_of_a_counting_only_the_latest_stand_is_kept():
    relay = ProgressRelay()
    with relay.counting("baselines", 3, done=1) as advance:
        advance()
        advance()
        relay.say("ready")
        advance()
    assert relay.take() == [
        Event(text="baselines", done=3, total=3),
        Event(text="ready"),
        Event(text="baselines", done=None, total=3),
    ]
    assert relay.take() == []


async def test_work_elsewhere_is_shown_while_it_goes_on_and_its_result_returned(monkeypatch):
    monkeypatch.setattr("jaxagent.run.progress_relay._INTERVAL_S", 0.01)
    relay, shown = ProgressRelay(), io.StringIO()

    async def work() -> str:
        with relay.counting("kernels", 8) as advance:
            for number in range(8):
                advance()
                await asyncio.sleep(0.02)
                if number == 2:
                    relay.say("halfway, nearly")
        return "done"

    async def take() -> list[Event]:
        return relay.take()

    assert await followed(work(), take, RunProgress(Console(file=shown))) == "done"
    lines = [line.strip() for line in shown.getvalue().splitlines()]
    assert "kernels: 4/8" in lines and lines.index("kernels: 2/8") < lines.index("halfway, nearly")


async def test_a_failure_there_is_a_failure_here_and_stopping_here_stops_it(monkeypatch):
    monkeypatch.setattr("jaxagent.run.progress_relay._INTERVAL_S", 0.01)
    stopped = asyncio.Event()

    async def fail() -> None:
        raise OSError("no space")

    async def hang() -> None:
        try:
            await asyncio.sleep(60)
        except asyncio.CancelledError:
            stopped.set()
            raise

    async def take() -> list[Event]:
        return []

    with pytest.raises(OSError, match="no space"):
        await followed(fail(), take, RunProgress(Console(file=io.StringIO())))
    with pytest.raises(TimeoutError):
        await asyncio.wait_for(followed(hang(), take, RunProgress(Console(file=io.StringIO()))), 0.1)
    assert stopped.is_set()


async def test_the_first_failure_of_many_is_raised_as_it_is_and_the_others_stop():
    ended: list[str] = []

    async def hang() -> None:
        try:
            await asyncio.sleep(60)
        finally:
            ended.append("hang")

    async def fail() -> None:
        await asyncio.sleep(0.01)
        raise OSError("no space")

    with pytest.raises(OSError, match="no space"):
        await concurrently([hang(), fail(), hang()])
    assert ended == ["hang", "hang"]
