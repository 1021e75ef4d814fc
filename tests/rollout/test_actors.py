from __future__ import annotations

import asyncio
import functools
import os
import signal
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pytest
import ray
from rollout_tokenizers import small_tokenizer
from rule_judge import RuleJudge

from rollout.actors import ActorEngine, call, engine_policy, start_rollout_actors, watch_actors
from rollout.chat import ChatFormat
from rollout.config import DialogueConfig
from rollout.parsers import make_parser
from rollout.scripted import Opening, Script, ScriptedPolicy
from rollout.types import Completion, EngineError, RolloutError, SamplingParams
from sandbox.config import SandboxConfig
from sandbox.types import DeviceError, Task

pytestmark = pytest.mark.ray

PARSER = make_parser("qwen3_coder")
TASK = Task(task_id="double", code="class Model: pass")
AGENTIC = DialogueConfig(max_context_tokens=3000, max_seconds=60)


@pytest.fixture(scope="module")
def cluster():
    root = Path(__file__).parents[2]
    paths = os.pathsep.join([str(root), str(Path(__file__).parent)])
    ray.init(
        address="local", num_cpus=2, include_dashboard=False, logging_level="ERROR", object_store_memory=200 << 20,
        runtime_env={"env_vars": {"PYTHONPATH": paths}},
    )  # fmt: skip
    yield
    ray.shutdown()


def play(opening: Opening) -> Script:
    """Odd seeds write a good answer, 99 one that the judge's device does not survive."""
    text = "# lost" if opening.seed == 99 else "# good" if opening.seed % 2 else "# bad"
    yield PARSER.render("write", {"path": "model_new.py", "content": text})
    yield PARSER.render("bash", {"command": "python3 utils/verification.py"})
    yield "Done."


def slow_expert() -> ScriptedPolicy:
    return ScriptedPolicy(play, ChatFormat(small_tokenizer()), think_s=0.3)


@ray.remote(num_cpus=0, max_concurrency=100)
class EchoEngine:
    """Answers every prompt with `Done.`, its number as the policy version of the tokens."""

    def __init__(self, number: int) -> None:
        self._number = number
        self._chat = ChatFormat(small_tokenizer())
        self._cancelled = 0

    async def generate(self, prompt_token_ids: np.ndarray, params: SamplingParams, session_id: str) -> Completion:
        try:
            await asyncio.sleep(30 if session_id == "hang" else 0.05)
        except asyncio.CancelledError:
            self._cancelled += 1
            raise
        if session_id == "refuse":
            raise EngineError("weights are not known")
        token_ids = self._chat.encode_reply("Done.")
        return Completion(
            token_ids=token_ids,
            logprobs=np.zeros(len(token_ids), np.float32),
            policy_versions=np.full(len(token_ids), self._number, np.int32),
            finish_reason="stop",
        )

    async def cancelled(self) -> int:
        return self._cancelled


def started(policies, **options):
    return start_rollout_actors(
        2, trajectories_per_actor=8, policies=policies, judge=RuleJudge(), sandbox_config=SandboxConfig(backend="process"),
        skill="cpp", **options,
    )  # fmt: skip


class NeverAnswers:
    """What `actor.method` of a handle is, on a cluster that has been shut down meanwhile."""

    def remote(self) -> asyncio.Future[None]:
        return asyncio.get_running_loop().create_future()


async def test_a_call_that_is_cancelled_after_ray_has_ended_does_not_start_it_again() -> None:
    assert not ray.is_initialized()
    calling = asyncio.create_task(call(NeverAnswers()))
    await asyncio.sleep(0)
    calling.cancel()
    with pytest.raises(asyncio.CancelledError):
        await calling
    assert not ray.is_initialized()


async def test_actors_run_many_dialogues_at_once_and_return_whole_trajectories(cluster, tmp_path: Path) -> None:
    actors = started(lambda number: {"expert": slow_expert}, scratch_dir=tmp_path / "w", quiet_dir=tmp_path / "q")
    pids = [pid for actor in actors for pid in await call(actor.process_ids)]
    assert len(set(pids)) == 2 and os.getpid() not in pids
    assert sorted(entry.name for entry in (tmp_path / "q").iterdir()) == sorted(f"tree-{pid}" for pid in pids)
    begun = time.monotonic()
    trajectories = await asyncio.gather(*[
        call(actors[i % 2].run, TASK, policy="expert", stage="s", sample_index=i, seed=i, dialogue=AGENTIC,
             trajectory_id=f"s-{i:06d}")
        for i in range(12)
    ])  # fmt: skip
    seconds = time.monotonic() - begun
    assert [trajectory.trajectory_id for trajectory in trajectories] == [f"s-{i:06d}" for i in range(12)]
    assert [trajectory.judgement.reward for trajectory in trajectories] == [-1.0, 3.0] * 6
    assert all(len(trajectory.turns) == 3 and trajectory.turns[1].judgement for trajectory in trajectories)
    assert trajectories[0].turns[0].token_ids.dtype == np.int32
    assert seconds < 12 * 0.9  # one after the other the replies alone would take this long
    assert list((tmp_path / "w").iterdir()) == []

    with pytest.raises(DeviceError, match="the device is gone"):
        await call(actors[0].run, TASK, policy="expert", stage="s", sample_index=0, seed=99, dialogue=AGENTIC)
    with pytest.raises(ValueError, match="policy='actor' is not known to this actor; known: expert"):
        await call(actors[0].run, TASK, policy="actor", stage="s", sample_index=0, seed=1, dialogue=AGENTIC)

    for actor in actors:
        ray.kill(actor)


async def once_it_is_back(ask: Callable[[], Awaitable[Any]]) -> Any:
    """The first answer of an actor that Ray is starting again."""
    for _ in range(60):
        try:
            return await ask()
        except RolloutError:
            await asyncio.sleep(0.5)
    raise AssertionError("the actor does not come back")


async def test_a_killed_actor_loses_what_was_under_way_and_comes_back(cluster, tmp_path: Path) -> None:
    actors = started(lambda number: {"expert": slow_expert})
    (pid,) = await call(actors[1].process_ids)
    roll = functools.partial(
        call, actors[1].run, TASK, policy="expert", stage="s", sample_index=0, seed=1, dialogue=AGENTIC
    )
    running = asyncio.create_task(roll())
    await asyncio.sleep(0.5)
    os.kill(pid, signal.SIGKILL)
    with pytest.raises(RolloutError, match="a remote call was lost"):
        await running
    trajectory = await once_it_is_back(roll)
    assert trajectory.judgement.reward == 3.0
    assert await call(actors[1].process_ids) != [pid]
    for actor in actors:
        ray.kill(actor)


async def test_dialogues_reach_engines_through_handles_and_survive_the_loss_of_one(cluster, tmp_path: Path) -> None:
    small_tokenizer().save(str(tmp_path / "tokenizer.json"))
    engines = [EchoEngine.remote(0), EchoEngine.remote(1)]
    actors = started(lambda number: {"actor": functools.partial(engine_policy, tmp_path, engines, offset=number)})

    async def roll(i: int) -> int:
        trajectory = await call(
            actors[i % 2].run, TASK, policy="actor", stage="s", sample_index=i, seed=i, dialogue=AGENTIC
        )
        return int(trajectory.turns[0].policy_versions[0])

    versions = await asyncio.gather(*[roll(i) for i in range(8)])
    assert sorted(versions) == [0, 0, 0, 0, 1, 1, 1, 1]

    ray.kill(engines[0])
    outcomes = await asyncio.gather(*[roll(i) for i in range(8)], return_exceptions=True)
    lost = [outcome for outcome in outcomes if isinstance(outcome, EngineError)]
    assert len(lost) + outcomes.count(1) == 8 and lost
    assert await asyncio.gather(*[roll(i) for i in range(8)]) == [1] * 8  # the dead one is left alone for a while
    (pid,) = await call(actors[0].process_ids)
    os.kill(pid, signal.SIGKILL)
    assert await once_it_is_back(lambda: roll(0)) in (0, 1)  # although it holds engines' handles
    for actor in [*actors, engines[1]]:
        ray.kill(actor)


async def test_an_engines_own_error_arrives_as_itself_and_cancelling_reaches_it(cluster) -> None:
    handle = EchoEngine.remote(5)
    engine, prompt, params = ActorEngine(handle), np.arange(4, dtype=np.int32), SamplingParams(max_tokens=9)
    with pytest.raises(EngineError, match="^weights are not known$"):
        await engine.generate(prompt, params, "refuse")
    hanging = asyncio.create_task(engine.generate(prompt, params, "hang"))
    await asyncio.sleep(1.0)
    hanging.cancel()
    with pytest.raises(asyncio.CancelledError):
        await hanging
    for _ in range(50):
        if await call(handle.cancelled):
            break
        await asyncio.sleep(0.1)
    assert await call(handle.cancelled) == 1
    ray.kill(handle)


async def test_an_actor_that_falls_silent_is_ended_and_its_work_repeated(cluster) -> None:
    actors = started(lambda number: {"expert": slow_expert})
    (pid,), (other,) = await call(actors[0].process_ids), await call(actors[1].process_ids)
    silent: list[int] = []
    watching = asyncio.create_task(watch_actors(actors, silence_s=3.0, on_silent=lambda: silent.append(1)))
    roll = functools.partial(
        call, actors[0].run, TASK, policy="expert", stage="s", sample_index=0, seed=1, dialogue=AGENTIC
    )
    running = asyncio.create_task(roll())
    await asyncio.sleep(0.5)
    os.kill(pid, signal.SIGSTOP)
    with pytest.raises(RolloutError, match="a remote call was lost"):
        await asyncio.wait_for(running, 60)
    trajectory = await once_it_is_back(lambda: asyncio.wait_for(roll(), 60))
    assert trajectory.judgement.reward == 3.0
    assert silent == [1] and await call(actors[1].process_ids) == [other] and not psutil.pid_exists(pid)
    watching.cancel()
    for actor in actors:
        ray.kill(actor)
