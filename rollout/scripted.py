"""A policy whose answers are known beforehand: for tests, for benchmarks of the flow, and the base of an expert.

A script is a generator: it yields a reply and is sent the observations that came back.

    def script(opening):
        observations = yield 'I look. <tool_call>…</tool_call>'
        yield "Done."
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Generator
from dataclasses import dataclass

import numpy as np

from rollout.chat import ChatFormat
from rollout.policy import TokenHistory
from rollout.types import Completion, Dialogue, Reply, RolloutError, Usage

Script = Generator[str, list[str], None]

SCRIPTED_VERSION = -1
"""Policy version of a script's tokens: no weights sampled them."""


@dataclass(frozen=True, slots=True)
class Opening:
    """What a script knows when its dialogue begins. `user` holds the task's code verbatim."""

    system: str
    user: str
    session_id: str
    seed: int


class ScriptedPolicy:
    """Policy that plays a script in every dialogue.

    With `chat` its turns carry the token ids of its texts (logprobs 0, version -1) under the same limits as an
    engine's: longer replies are cut, a full context ends the dialogue. Without, it only speaks text.
    """

    def __init__(
        self, script: Callable[[Opening], Script], chat: ChatFormat | None = None, *, think_s: float = 0.0
    ) -> None:
        """`think_s`: seconds that every reply takes, as an engine's would."""
        self._script = script
        self._chat = chat
        self._think_s = think_s

    def open(
        self, *, system: str, user: str, session_id: str, seed: int, max_context: int, max_reply: int,
        temperature: float,
    ) -> Dialogue:  # fmt: skip
        opening = Opening(system=system, user=user, session_id=session_id, seed=seed)
        history = None
        if self._chat is not None:
            history = TokenHistory(self._chat, system=system, user=user, max_context=max_context, max_reply=max_reply)
        return ScriptedDialogue(self._script(opening), self._chat, history, think_s=self._think_s)


class ScriptedDialogue:
    """One run of a script."""

    def __init__(
        self, script: Script, chat: ChatFormat | None, history: TokenHistory | None, *, think_s: float
    ) -> None:
        self._script = script
        self._chat = chat
        self._history = history
        self._think_s = think_s
        self._observations: list[str] | None = None

    async def generate(self) -> Reply:
        if self._chat is None or self._history is None:
            return _text_reply(await self._next_text())
        prompt = self._history.prompt
        room = self._history.reply_room()
        text = await self._next_text()
        token_ids = self._chat.encode_reply(text)
        finish_reason = "stop"
        if len(token_ids) > room:
            token_ids, finish_reason = token_ids[:room], "length"
            text = self._chat.decode(token_ids)
        self._history.add_reply(token_ids)
        completion = Completion(
            token_ids=token_ids,
            logprobs=np.zeros(len(token_ids), np.float32),
            policy_versions=np.full(len(token_ids), SCRIPTED_VERSION, np.int32),
            finish_reason=finish_reason,
        )
        return Reply(text=text, prompt_token_ids=prompt, completion=completion)

    def observe(self, observations: list[str]) -> None:
        self._observations = observations
        if self._history is not None:
            self._history.add_observations(observations)

    async def _next_text(self) -> str:
        if self._think_s > 0:
            await asyncio.sleep(self._think_s)
        try:
            if self._observations is None:
                return next(self._script)
            return self._script.send(self._observations)
        except StopIteration:
            raise RolloutError(
                "the script ended before its dialogue; its last reply must hold no tool call, and fit max_reply_tokens"
            ) from None


def _text_reply(text: str) -> Reply:
    return Reply(text=text, prompt_token_ids=np.zeros(0, np.int32), completion=text_completion("stop"))


def text_completion(finish_reason: str, usage: Usage | None = None) -> Completion:
    """The completion of a policy that has no tokens to show."""
    return Completion(
        token_ids=np.zeros(0, np.int32),
        logprobs=np.zeros(0, np.float32),
        policy_versions=np.zeros(0, np.int32),
        finish_reason=finish_reason,
        usage=usage,
    )
