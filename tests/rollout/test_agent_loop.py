from __future__ import annotations

import asyncio
from pathlib import Path

import numpy as np
import pytest
from rollout_tokenizers import small_tokenizer

from rollout.agent_loop import OUT_OF_TIME, run_dialogue
from rollout.chat import ChatFormat
from rollout.config import DialogueConfig
from rollout.parsers import make_parser
from rollout.policy import TokenPolicy, check_prefix, turn_seed
from rollout.scripted import SCRIPTED_VERSION, Opening, Script, ScriptedPolicy
from rollout.tools import ToolBox, agent_tools
from rollout.types import Completion, RolloutError, SamplingParams, StopReason, TokenPrefixError
from sandbox.backends import open_sandbox
from sandbox.config import SandboxConfig

PARSER = make_parser("qwen3_coder")


def bash(command: str) -> str:
    return PARSER.render("bash", {"command": command})


def playing(*replies: str):
    """A script of fixed replies that keeps what it was told."""
    heard: list[list[str]] = []

    def script(opening: Opening) -> Script:
        for reply in replies:
            heard.append((yield reply))

    return script, heard


@pytest.fixture
async def tools(tmp_path: Path):
    (tmp_path / "workdir" / "kernels").mkdir(parents=True)
    sandbox = await open_sandbox(SandboxConfig(backend="process"), tmp_path / "workdir")
    yield agent_tools(sandbox, timeout_s=20.0, max_chars=400)
    await sandbox.close()


@pytest.fixture
def chat() -> ChatFormat:
    return ChatFormat(small_tokenizer())


async def conduct(policy, tools: ToolBox, **limits):
    config = DialogueConfig(**{"max_context_tokens": 1500, "max_reply_tokens": 300, "max_seconds": 30} | limits)
    dialogue = policy.open(
        system="Write kernels.", user="class Model: ...", session_id="s", seed=3, temperature=1.0,
        max_context=config.max_context_tokens, max_reply=config.max_reply_tokens,
    )  # fmt: skip
    return await run_dialogue(dialogue, tools, PARSER, config)


async def test_a_dialogue_runs_its_calls_in_order_and_ends_with_an_answer(tools: ToolBox, chat: ChatFormat) -> None:
    script, heard = playing(f"I write.\n{bash('echo hi > model_new.py')}\n{bash('cat model_new.py')}", "Done.")
    turns, reason = await conduct(ScriptedPolicy(script, chat), tools)
    assert reason is StopReason.FINISHED
    assert [turn.observations for turn in turns] == [["[no output]", "hi"], []]
    assert heard == [["[no output]", "hi"]]
    assert [call.name for call in turns[0].tool_calls] == ["bash", "bash"]
    assert turns[1].text == "Done." and not turns[1].truncated


async def test_each_prompt_starts_with_all_tokens_before_it(tools: ToolBox, chat: ChatFormat) -> None:
    script, _ = playing(bash("echo one"), "no call, <tool_call> broken", bash("echo three"), "Done.")
    turns, _ = await conduct(ScriptedPolicy(script, chat), tools)
    assert len(turns) == 4
    for turn, following in zip(turns, turns[1:], strict=False):
        before = [*turn.prompt_token_ids, *turn.token_ids]
        prompt = following.prompt_token_ids.tolist()
        assert prompt[: len(before)] == before
        increment = chat.decode_raw(prompt[len(before) :])
        assert increment == (
            f"\n<|im_start|>user\n<tool_response>\n{turn.observations[0]}\n</tool_response><|im_end|>\n<|im_start|>assistant\n"
        )
        assert chat.decode(turn.token_ids) == turn.text
    assert all((turn.policy_versions == SCRIPTED_VERSION).all() and (turn.logprobs == 0).all() for turn in turns)


async def test_a_malformed_call_comes_back_as_an_error_and_the_dialogue_goes_on(tools: ToolBox) -> None:
    script, heard = playing("<tool_call>\n<function=bash>", PARSER.render("fly", {}), "Done.")
    turns, reason = await conduct(ScriptedPolicy(script), tools)
    assert reason is StopReason.FINISHED and len(turns) == 3
    assert turns[0].tool_calls[0].error and heard[0][0].startswith("error: bash: expected <parameter")
    assert turns[1].tool_calls[0].error and heard[1][0].startswith("error: unknown tool 'fly'")


async def test_a_reply_that_was_cut_off_is_marked_and_told_and_closed(tools: ToolBox, chat: ChatFormat) -> None:
    long_reply = bash("echo kept > kernels/a.cpp") + "\n" + bash("echo " + "long " * 200)
    script, heard = playing(long_reply, bash("cat kernels/a.cpp"), "Done.")
    turns, reason = await conduct(ScriptedPolicy(script, chat), tools, max_reply_tokens=100)
    assert reason is StopReason.FINISHED and [turn.truncated for turn in turns] == [True, False, False]
    assert len(turns[0].token_ids) == 100
    assert len(turns[0].observations) == len(turns[0].tool_calls) + 1
    assert turns[0].observations[0] == "[no output]" and "cut off" in heard[0][-1]
    assert turns[1].observations == ["kept"]
    end = chat.stop_token_ids[0]
    split = len(turns[0].prompt_token_ids) + 100
    assert turns[1].prompt_token_ids[split] == end  # the format closes what the policy did not
    check_prefix(turns[0].prompt_token_ids, turns[0].token_ids, turns[1].prompt_token_ids)


async def test_a_cut_off_answer_without_a_call_does_not_end_the_dialogue(tools: ToolBox, chat: ChatFormat) -> None:
    script, heard = playing("words " * 200, "Done.")
    turns, reason = await conduct(ScriptedPolicy(script, chat), tools, max_reply_tokens=50)
    assert reason is StopReason.FINISHED and len(turns) == 2
    assert turns[0].tool_calls == [] and len(turns[0].observations) == 1


async def test_the_number_of_turns_is_limited_and_the_last_calls_are_carried_out(tools: ToolBox) -> None:
    script, heard = playing(*[bash(f"echo {i} >> kernels/log.txt") for i in range(9)])
    turns, reason = await conduct(ScriptedPolicy(script), tools, max_turns=3)
    assert reason is StopReason.MAX_TURNS and len(turns) == 3
    assert len(heard) == 2  # nobody is told the last results
    call = tools.check(PARSER.parse(bash("cat kernels/log.txt"))[0])
    assert await tools.act(call) == "0\n1\n2"


async def test_a_full_context_ends_the_dialogue(tools: ToolBox, chat: ChatFormat) -> None:
    script, _ = playing(*[bash("seq 1 100") for _ in range(50)])
    turns, reason = await conduct(ScriptedPolicy(script, chat), tools, max_context_tokens=700, max_turns=50)
    assert reason is StopReason.MAX_TOKENS and 1 < len(turns) < 50
    assert max(len(turn.prompt_token_ids) + len(turn.token_ids) for turn in turns) <= 700


async def test_a_tool_under_way_is_stopped_when_time_is_over(tools: ToolBox) -> None:
    script, _ = playing(bash("echo first") + bash("sleep 20") + bash("echo never"))
    turns, reason = await conduct(ScriptedPolicy(script), tools, max_seconds=1.0)
    assert reason is StopReason.MAX_SECONDS
    assert turns[0].observations == ["first", OUT_OF_TIME, OUT_OF_TIME]


async def test_a_reply_under_way_is_discarded_when_time_is_over(tools: ToolBox) -> None:
    script, _ = playing(*[bash("true")] * 20)
    turns, reason = await conduct(ScriptedPolicy(script, think_s=0.3), tools, max_seconds=1.0)
    assert reason is StopReason.MAX_SECONDS and 1 <= len(turns) <= 3


async def test_no_reply_at_all_in_time_is_our_trouble(tools: ToolBox) -> None:
    script, _ = playing("late")
    with pytest.raises(RolloutError, match="no reply came within dialogue.max_seconds=0.2"):
        await conduct(ScriptedPolicy(script, think_s=5.0), tools, max_seconds=0.2)


async def test_a_prompt_longer_than_the_context_is_refused_before_anything_runs(
    tools: ToolBox, chat: ChatFormat
) -> None:
    script, _ = playing("Done.")
    with pytest.raises(ValueError, match="dialogue.max_context_tokens=20 leaves no room"):
        await conduct(ScriptedPolicy(script, chat), tools, max_context_tokens=20)


async def test_a_script_that_ends_too_early_is_our_trouble(tools: ToolBox) -> None:
    script, _ = playing(bash("true"))
    with pytest.raises(RolloutError, match="script ended before its dialogue"):
        await conduct(ScriptedPolicy(script), tools)


class TextEngine:
    """An engine in this process whose words are known: real tokens, logprobs and versions, no model."""

    def __init__(self, chat: ChatFormat, *replies: str) -> None:
        self._chat = chat
        self._replies = list(replies)
        self.requests: list[tuple[np.ndarray, SamplingParams, str]] = []

    async def generate(self, prompt_token_ids: np.ndarray, params: SamplingParams, session_id: str) -> Completion:
        self.requests.append((prompt_token_ids.copy(), params, session_id))
        ids = self._chat.encode_reply(self._replies.pop(0))
        cut = ids[: params.max_tokens]
        return Completion(
            token_ids=cut,
            logprobs=np.linspace(-2, -1, len(cut), dtype=np.float32),
            policy_versions=np.full(len(cut), len(self.requests), np.int32),
            finish_reason="stop" if len(cut) == len(ids) else "length",
        )


async def test_an_engines_tokens_reach_the_turns_unchanged(tools: ToolBox, chat: ChatFormat) -> None:
    engine = TextEngine(chat, bash("echo one"), "Done.")
    turns, reason = await conduct(TokenPolicy(engine, chat), tools, max_reply_tokens=200)
    assert reason is StopReason.FINISHED
    (first, params, session), (second, next_params, _) = engine.requests
    assert session == "s" and params.temperature == 1.0 and params.max_tokens == 200
    assert params.seed == turn_seed(3, 0) and next_params.seed == turn_seed(3, 1) != params.seed
    assert params.stop_token_ids == chat.stop_token_ids
    np.testing.assert_array_equal(turns[0].prompt_token_ids, first)
    np.testing.assert_array_equal(turns[1].prompt_token_ids, second)
    assert turns[0].policy_versions.tolist() == [1] * len(turns[0].token_ids)
    assert turns[1].policy_versions.tolist() == [2] * len(turns[1].token_ids)
    assert turns[0].logprobs[0] == -2.0


async def test_the_last_reply_gets_only_the_room_that_is_left(tools: ToolBox, chat: ChatFormat) -> None:
    engine = TextEngine(chat, "words " * 400)
    opening = len(chat.start("Write kernels.", "class Model: ..."))
    turns, reason = await conduct(
        TokenPolicy(engine, chat), tools, max_context_tokens=opening + 90, max_reply_tokens=300
    )
    assert reason is StopReason.MAX_TOKENS and turns[0].truncated and len(turns[0].token_ids) == 90


class BrokenEngine(TextEngine):
    def __init__(self, chat: ChatFormat, break_it) -> None:
        super().__init__(chat, "Done.")
        self._break = break_it

    async def generate(self, *args) -> Completion:
        return self._break(await super().generate(*args))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda c: {"logprobs": c.logprobs[:-1]}, "they must be as many"),
        (
            lambda c: {
                "token_ids": c.token_ids[:0],
                "logprobs": c.logprobs[:0],
                "policy_versions": c.policy_versions[:0],
            },
            "0 tokens",
        ),
        (lambda c: {"logprobs": np.full_like(c.logprobs, np.nan)}, "not finite"),
        (lambda c: {"token_ids": c.token_ids[::-1]}, "its last token is no stop token"),
    ],
)
async def test_an_engine_that_contradicts_itself_is_our_trouble(
    tools: ToolBox, chat: ChatFormat, change, message
) -> None:
    import dataclasses

    engine = BrokenEngine(chat, lambda completion: dataclasses.replace(completion, **change(completion)))
    with pytest.raises(RolloutError, match=message):
        await conduct(TokenPolicy(engine, chat), tools)


class RetokenisingDialogue:
    """Drops the last token of its history, as a chat template that rewrites the past does."""

    def __init__(self, dialogue) -> None:
        self._dialogue = dialogue
        self._turn = 0

    async def generate(self):
        import dataclasses

        reply = await self._dialogue.generate()
        self._turn += 1
        prompt = reply.prompt_token_ids if self._turn == 1 else np.delete(reply.prompt_token_ids, 5)
        return dataclasses.replace(reply, prompt_token_ids=prompt)

    def observe(self, observations: list[str]) -> None:
        self._dialogue.observe(observations)


async def test_a_policy_that_retokenises_its_past_is_found_out(tools: ToolBox, chat: ChatFormat) -> None:
    script, _ = playing(bash("true"), "Done.")
    dialogue = ScriptedPolicy(script, chat).open(
        system="s", user="u", session_id="s", seed=0, max_context=500, max_reply=100, temperature=1.0
    )
    with pytest.raises(TokenPrefixError, match="re-tokenised"):
        await run_dialogue(RetokenisingDialogue(dialogue), tools, PARSER, DialogueConfig())


async def test_trouble_of_a_tools_own_clock_is_not_taken_for_the_dialogues(tools: ToolBox) -> None:
    class Impatient:
        judgements = ()

        def check(self, call):
            return call

        async def act(self, call):
            raise TimeoutError("the engine's own")

    script, _ = playing(bash("true"))
    with pytest.raises(TimeoutError, match="the engine's own"):
        await conduct(ScriptedPolicy(script), Impatient())


async def test_many_dialogues_run_at_once_in_one_process(tools: ToolBox) -> None:
    script, _ = playing(*[bash("true")] * 3, "Done.")
    loop = asyncio.get_running_loop()
    started = loop.time()
    results = await asyncio.gather(*[conduct(ScriptedPolicy(script, think_s=0.2), tools) for _ in range(20)])
    assert all(reason is StopReason.FINISHED and len(turns) == 4 for turns, reason in results)
    assert loop.time() - started < 8  # one after the other they would take 16 s


async def test_a_dialogue_ends_when_its_sandbox_time_is_used_up(tmp_path: Path) -> None:
    (tmp_path / "workdir" / "kernels").mkdir(parents=True)
    sandbox = await open_sandbox(SandboxConfig(backend="process"), tmp_path / "workdir")
    tools = agent_tools(sandbox, timeout_s=20.0, max_chars=400, max_sandbox_s=1.0)
    script, _ = playing(bash("echo one"), bash("sleep 9") + bash("echo two"), "Done.")
    turns, reason = await conduct(ScriptedPolicy(script), tools)
    await sandbox.close()
    assert reason is StopReason.MAX_SANDBOX_SECONDS and len(turns) == 2
    assert turns[0].observations == ["one"]
    assert all("timed out" in observation for observation in turns[1].observations)
