from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
from rollout_tokenizers import CHATML, LLAMA3, small_tokenizer
from rule_judge import RuleJudge

from rollout.chat import ChatFormat
from rollout.config import DialogueConfig
from rollout.packages import WeightsPackage
from rollout.policy import TokenPolicy
from rollout.scripted_engine import ScriptedEngine
from rollout.scripted_load import TurnLoad
from rollout.types import EngineError, SamplingParams, StopReason
from rollout.worker import RolloutWorker
from sandbox.config import SandboxConfig
from sandbox.types import Task

TASK = Task(task_id="double", code="class Model: pass\n")
LOAD = TurnLoad(median_turn_s=0.02, max_turns=6, mean_turns=4)


@pytest.mark.parametrize("specials", [CHATML, LLAMA3])
async def test_a_dialogue_has_the_turns_of_its_load_without_any_state(tmp_path: Path, specials) -> None:
    small_tokenizer(specials).save(str(tmp_path / "tokenizer.json"))
    engine = ScriptedEngine(tmp_path, LOAD)
    await engine.start(version=3)
    policy = TokenPolicy(engine, ChatFormat.from_folder(tmp_path))
    worker = RolloutWorker(policy, RuleJudge(), SandboxConfig(backend="files"), "cpp", scratch_dir=tmp_path / "w")
    dialogue = DialogueConfig(max_turns=6, max_context_tokens=8000)
    for name in ("s-000000", "s-000001", "s-000000"):
        trajectory = await worker.run(TASK, stage="s", sample_index=0, seed=0, dialogue=dialogue, trajectory_id=name)
        assert len(trajectory.turns) == len(LOAD.turn_seconds(name))
        assert trajectory.stop_reason is StopReason.FINISHED and trajectory.oldest_version == 3
        assert not any(call.error for turn in trajectory.turns for call in turn.tool_calls)
        assert [turn.observations for turn in trajectory.turns[:1]] in ([["created kernels/k.cpp"]], [[]])


async def test_an_update_within_a_reply_parts_its_versions(tmp_path: Path) -> None:
    small_tokenizer().save(str(tmp_path / "tokenizer.json"))
    engine = ScriptedEngine(tmp_path, TurnLoad(median_turn_s=0.3, sigma=0))
    with pytest.raises(EngineError, match="not started"):
        await engine.check_health()
    await engine.start()
    chat = ChatFormat.from_folder(tmp_path)
    params = SamplingParams(max_tokens=500, stop_token_ids=chat.stop_token_ids)
    reply = asyncio.create_task(engine.generate(chat.start("", "task"), params, "s"))
    await asyncio.sleep(0.1)
    await engine.publish(WeightsPackage(version=1, files=[]))
    completion = await reply
    versions = completion.policy_versions.tolist()
    assert versions == sorted(versions) and set(versions) == {0, 1} and completion.finish_reason == "stop"
    cut = await engine.generate(chat.start("", "task"), SamplingParams(max_tokens=3, stop_token_ids=[1]), "s")
    assert len(cut.token_ids) == 3 and cut.finish_reason == "length"


async def test_a_dialogue_without_a_shell_refuses_commands_and_keeps_files(tmp_path: Path) -> None:
    from rollout.tools import agent_tools
    from rollout.types import ToolCall
    from sandbox.backends import open_sandbox

    (tmp_path / "w" / "kernels").mkdir(parents=True)
    sandbox = await open_sandbox(SandboxConfig(backend="files"), tmp_path / "w")
    tools = agent_tools(sandbox, timeout_s=5.0, max_chars=500, home=sandbox.home)
    assert "nothing is executed" in await tools.act(ToolCall(name="bash", arguments={"command": "ls"}))
    written = await tools.act(ToolCall(name="write", arguments={"path": "kernels/a.cpp", "content": "a"}))
    assert written == "created kernels/a.cpp" and (tmp_path / "w" / "kernels" / "a.cpp").read_text() == "a\n"
    await sandbox.close()
