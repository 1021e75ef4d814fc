"""The agent loop: generate, parse, act, observe, until the dialogue ends itself or meets a limit.

Dialogue --reply--> Parser --calls--> ToolBox --observations--> Dialogue
                       no call: finished
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from rollout.clock import DialogueClock
from rollout.config import DialogueConfig
from rollout.policy import check_prefix
from rollout.types import ContextFullError, Dialogue, Reply, RolloutError, StopReason, ToolCall, Turn
from sandbox.types import Judgement

OUT_OF_TIME = "[stopped: the time of this dialogue is over]"


class Tools(Protocol):
    """What a ToolBox offers the loop."""

    judgements: Sequence[Judgement]

    @property
    def exhausted(self) -> bool: ...

    def check(self, call: ToolCall) -> ToolCall: ...

    async def act(self, call: ToolCall) -> str: ...


class CallParser(Protocol):
    def parse(self, text: str) -> list[ToolCall]: ...


async def run_dialogue(
    dialogue: Dialogue,
    tools: Tools,
    parser: CallParser,
    limits: DialogueConfig,
    *,
    clock: DialogueClock | None = None,
) -> tuple[list[Turn], StopReason]:
    """Conducts one dialogue and says why it ended.

    FINISHED     a reply without a tool call that was not cut off; single-turn: the one reply, whatever it was
    MAX_TURNS    `max_turns` replies were given; the calls of the last one are still carried out
    MAX_TOKENS   the context has no room for another reply
    MAX_SECONDS  the wall time is over: a reply under way is discarded, a tool under way is stopped
    MAX_SANDBOX_SECONDS  commands took `max_sandbox_seconds`: the one under way was killed, later ones not run

    `observations[i]` of a turn belongs to `tool_calls[i]`. A reply that was cut off at `max_reply_tokens` has one
    more, which says so: its complete calls are carried out, the rest is lost. A malformed call is not carried out
    and its error is the observation. `clock` counts `limits.max_seconds`; give it where somebody may hold it.

    Raises RolloutError where not even one reply came in time, TokenPrefixError where the policy re-tokenised.
    """
    clock = clock or DialogueClock(limits.max_seconds)
    max_turns = 1 if limits.kind == "single_turn" else limits.max_turns
    turns: list[Turn] = []
    while True:
        if len(turns) >= max_turns:
            return turns, StopReason.FINISHED if limits.kind == "single_turn" else StopReason.MAX_TURNS
        reply = await _generate(dialogue, clock)
        if isinstance(reply, StopReason):
            if not turns:
                limit = "max_seconds" if reply is StopReason.MAX_SECONDS else "max_context_tokens"
                value = getattr(limits, limit)
                raise RolloutError(
                    f"no reply came within dialogue.{limit}={value}; raise it, or see whether the engine is stuck"
                )
            return turns, reply
        if turns:
            check_prefix(turns[-1].prompt_token_ids, turns[-1].token_ids, reply.prompt_token_ids)
        turn, in_time = await _act(reply, tools, parser, clock)
        turns.append(turn)
        if not turn.observations and limits.kind == "agentic":
            return turns, StopReason.FINISHED
        if not in_time:
            return turns, StopReason.MAX_SECONDS
        if tools.exhausted:
            return turns, StopReason.MAX_SANDBOX_SECONDS
        if len(turns) < max_turns:
            dialogue.observe(turn.observations)


async def _generate(dialogue: Dialogue, clock: DialogueClock) -> Reply | StopReason:
    if clock.expired:
        return StopReason.MAX_SECONDS
    timeout = None
    try:
        async with clock.limit() as timeout:
            return await dialogue.generate()
    except ContextFullError:
        return StopReason.MAX_TOKENS
    except TimeoutError:
        if timeout is None or not timeout.expired():  # somebody else's time-out: trouble of ours
            raise
        return StopReason.MAX_SECONDS


async def _act(reply: Reply, tools: Tools, parser: CallParser, clock: DialogueClock) -> tuple[Turn, bool]:
    """Carries out the calls of a reply in order. Returns the turn, and whether time was left for all of them."""
    truncated = reply.completion.finish_reason == "length"
    calls = [tools.check(call) for call in parser.parse(reply.text)]
    judged_before = len(tools.judgements)
    observations: list[str] = []
    timeout = None
    try:
        async with clock.limit() as timeout:
            for call in calls:
                observations.append(await tools.act(call))
    except TimeoutError:
        if timeout is None or not timeout.expired():
            raise
        observations += [OUT_OF_TIME] * (len(calls) - len(observations))
    if truncated:
        cut = "your reply was cut off: it was longer than allowed; what was not complete is lost"
        observations.append(f"error: {cut}")
    turn = Turn(
        prompt_token_ids=reply.prompt_token_ids,
        token_ids=reply.completion.token_ids,
        logprobs=reply.completion.logprobs,
        policy_versions=reply.completion.policy_versions,
        text=reply.text,
        tool_calls=calls,
        observations=observations,
        judgement=tools.judgements[-1] if len(tools.judgements) > judged_before else None,
        truncated=truncated,
        usage=reply.completion.usage,
    )
    return turn, timeout is not None and not timeout.expired()
