from __future__ import annotations

import asyncio

import numpy as np
import pytest

from rollout.router import EngineRouter
from rollout.scripted import text_completion
from rollout.types import Completion, RolloutError, SamplingParams

PARAMS = SamplingParams(max_tokens=8)
PROMPT = np.arange(3, dtype=np.int32)


class SlowEngine:
    """Answers when it is let go, or fails."""

    def __init__(self) -> None:
        self.sessions: list[str] = []
        self.go = asyncio.Event()
        self.broken = False

    async def generate(self, prompt_token_ids: np.ndarray, params: SamplingParams, session_id: str) -> Completion:
        self.sessions.append(session_id)
        if self.broken:
            raise RolloutError("the engine died")
        await self.go.wait()
        return text_completion("stop")


async def start(router: EngineRouter, session: str) -> asyncio.Task[Completion]:
    task = asyncio.create_task(router.generate(PROMPT, PARAMS, session))
    await asyncio.sleep(0)
    return task


async def test_a_new_dialogue_goes_where_least_is_under_way() -> None:
    engines = [SlowEngine(), SlowEngine(), SlowEngine()]
    router = EngineRouter(engines)
    tasks = [await start(router, f"d{i}") for i in range(5)]
    assert [engine.sessions for engine in engines] == [["d0", "d3"], ["d1", "d4"], ["d2"]]
    engines[0].go.set()
    await asyncio.gather(tasks[0], tasks[3])
    tasks.append(await start(router, "d5"))
    assert engines[0].sessions[-1] == "d5"
    for engine in engines:
        engine.go.set()
    await asyncio.gather(*tasks)
    assert router.stats() == {"under_way": [0, 0, 0], "dialogues": [3, 2, 1], "requests": 6, "failures": 0}


async def test_a_dialogue_stays_with_its_engine() -> None:
    engines = [SlowEngine(), SlowEngine()]
    for engine in engines:
        engine.go.set()
    router = EngineRouter(engines)
    for _ in range(4):
        for session in ("a", "b", "c"):
            await router.generate(PROMPT, PARAMS, session)
    assert [sorted(set(engine.sessions)) for engine in engines] == [["a", "c"], ["b"]]


async def test_a_dialogue_whose_engine_failed_moves_and_new_ones_avoid_it() -> None:
    engines = [SlowEngine(), SlowEngine()]
    engines[1].go.set()
    engines[0].broken = True
    router = EngineRouter(engines)
    with pytest.raises(RolloutError, match="engine died"):
        await router.generate(PROMPT, PARAMS, "a")
    await router.generate(PROMPT, PARAMS, "a")
    await router.generate(PROMPT, PARAMS, "b")
    assert engines[0].sessions == ["a"] and engines[1].sessions == ["a", "b"]
    assert router.stats()["failures"] == 1


async def test_a_cancelled_request_is_not_counted_as_under_way() -> None:
    engines = [SlowEngine()]
    router = EngineRouter(engines)
    task = await start(router, "a")
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert router.stats()["under_way"] == [0]


async def test_routers_with_other_offsets_begin_with_other_engines() -> None:
    engines = [SlowEngine(), SlowEngine(), SlowEngine()]
    for engine in engines:
        engine.go.set()
    for offset in range(3):
        await EngineRouter(engines, offset=offset).generate(PROMPT, PARAMS, f"from {offset}")
    assert [engine.sessions for engine in engines] == [["from 0"], ["from 1"], ["from 2"]]
