from __future__ import annotations

import asyncio
import functools
import os
import signal
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import ray
from rollout_tokenizers import small_tokenizer
from rule_judge import RuleJudge

from rollout.actors import EngineActor, call, engine_policy, start_rollout_actors
from rollout.chat import ChatFormat
from rollout.config import DialogueConfig, EngineConfig
from rollout.policy import check_prefix
from rollout.types import EngineError, StopReason, Trajectory
from sandbox.config import SandboxConfig
from sandbox.types import Task

pytestmark = [pytest.mark.ray, pytest.mark.vllm]

TASK = Task(task_id="double", code="class Model: pass")
DIALOGUE = DialogueConfig(max_context_tokens=400, max_reply_tokens=60, max_turns=3)


@pytest.fixture
def cluster():
    paths = os.pathsep.join([str(Path(__file__).parents[2]), str(Path(__file__).parent)])
    ray.init(
        num_cpus=2, include_dashboard=False, logging_level="ERROR", object_store_memory=200 << 20,
        runtime_env={"env_vars": {"PYTHONPATH": paths}},
    )  # fmt: skip
    yield
    ray.shutdown()


@pytest.fixture
def model_dir(tmp_path: Path) -> Path:
    """A random Llama of a few thousand parameters that speaks the tests' tokenizer."""
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM

    tokenizer = small_tokenizer()
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=tokenizer.get_vocab_size(), hidden_size=64, intermediate_size=96, num_hidden_layers=2,
        num_attention_heads=2, num_key_value_heads=2, max_position_embeddings=512, eos_token_id=None, bos_token_id=None,
    )  # fmt: skip
    LlamaForCausalLM(config).save_pretrained(tmp_path)
    tokenizer.save(str(tmp_path / "tokenizer.json"))
    return tmp_path


def engine_of(model_dir: Path) -> Any:
    return EngineActor.remote(str(model_dir), EngineConfig(max_model_len=512, max_num_seqs=8, kv_cache_gib=0.1))


async def test_rollouts_of_a_served_model_are_token_exact(cluster, model_dir: Path) -> None:
    engine = engine_of(model_dir)
    with pytest.raises(EngineError, match="it was not started"):
        await call(engine.generate, np.arange(5), None, "s", died=EngineError)
    assert await call(engine.start, 3) > 0
    (actor,) = start_rollout_actors(
        1, trajectories_per_actor=8, judge=RuleJudge(), sandbox_config=SandboxConfig(backend="process"), skill="cpp",
        policies=lambda number: {"actor": functools.partial(engine_policy, model_dir, [engine], offset=number)},
    )  # fmt: skip

    async def roll(i: int) -> Trajectory:
        return await call(
            actor.run, TASK, policy="actor", stage="s", sample_index=i, seed=i, dialogue=DIALOGUE, died=EngineError
        )

    chat = ChatFormat.from_folder(model_dir)
    trajectories = await asyncio.gather(*[roll(i) for i in range(8)])
    for trajectory in trajectories:
        for turn in trajectory.turns:
            assert len(turn.logprobs) == len(turn.token_ids) > 0 and (turn.logprobs <= 0).all()
            assert (turn.policy_versions == 3).all()
            assert chat.decode(turn.token_ids) == turn.text
            assert turn.truncated is (len(turn.token_ids) == 60 and turn.token_ids[-1] not in chat.stop_token_ids)
        for turn, following in zip(trajectory.turns, trajectory.turns[1:], strict=False):
            check_prefix(turn.prompt_token_ids, turn.token_ids, following.prompt_token_ids)
        assert trajectory.stop_reason in (StopReason.FINISHED, StopReason.MAX_TURNS, StopReason.MAX_TOKENS)
    assert len({trajectory.turns[0].text for trajectory in trajectories}) == 8  # a seed of its own each
    again = await roll(2)
    np.testing.assert_array_equal(again.turns[0].token_ids, trajectories[2].turns[0].token_ids)

    for process in (await call(engine.process_ids))[:-1]:
        os.kill(process, signal.SIGKILL)
    with pytest.raises(EngineError):
        await roll(0)
    await call(engine.close)


@pytest.mark.slow
async def test_an_engine_that_died_is_started_again_under_its_handle(cluster, model_dir: Path) -> None:
    engine = engine_of(model_dir)
    policy = engine_policy(model_dir, [engine])
    for version in (0, 7):
        await call(engine.start, version)
        dialogue = policy.open(
            system="s", user="u", session_id="s", seed=0, max_context=200, max_reply=20, temperature=1.0
        )
        assert ((await dialogue.generate()).completion.policy_versions == version).all()
        *processes, actor_process = await call(engine.process_ids)
        for process in processes:
            os.kill(process, signal.SIGKILL)
        with pytest.raises(EngineError):
            await dialogue.generate()
        os.kill(actor_process, 0)  # only the engine died, not what holds it
    await call(engine.close)
