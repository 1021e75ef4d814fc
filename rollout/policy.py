"""A policy that speaks tokens: engine client + chat format = dialogues whose token ids are only ever appended to."""

from __future__ import annotations

from typing import Protocol

import numpy as np

from rollout.chat import ChatFormat
from rollout.types import Completion, ContextFullError, Reply, RolloutError, SamplingParams, TokenPrefixError

MIN_REPLY_TOKENS = 16
"""Less room than this in the context is no room: a stub of a reply would only teach how to be cut off."""


def least_reply(max_reply: int) -> int:
    """Tokens that a context must have left for a reply of at most `max_reply`."""
    return min(MIN_REPLY_TOKENS, max_reply)


class EngineClient(Protocol):
    """What generates: an engine in this process, a Ray actor, or several behind a router."""

    async def generate(self, prompt_token_ids: np.ndarray, params: SamplingParams, session_id: str) -> Completion:
        """[P] int32 in, sampled tokens out. `session_id` keeps a dialogue with the engine that has its prefix cached.

        Raises RolloutError when the engine fails; cancelling the call aborts the request.
        """
        ...


class TokenHistory:
    """The token ids of one dialogue: opening, reply, observations, reply, …

    Prompts are read-only views of one buffer, so that 150 turns of a long context share their memory.
    """

    def __init__(self, chat: ChatFormat, *, system: str, user: str, max_context: int, max_reply: int) -> None:
        opening = chat.start(system, user)
        self._chat = chat
        self._max_context = max_context
        self._max_reply = max_reply
        self._min_reply = least_reply(max_reply)
        if len(opening) + self._min_reply > max_context:
            raise ValueError(
                f"the prompt has {len(opening)} tokens; dialogue.max_context_tokens={max_context} leaves no room for a "
                f"reply of at least {self._min_reply}; raise it, shorten the prompt, or drop the task"
            )
        self._buffer = np.empty(max_context, dtype=np.int32)
        self._buffer[: len(opening)] = opening
        self._length = len(opening)
        self._full = False
        self._closed = True

    @property
    def prompt(self) -> np.ndarray:
        """[P] int32, read-only: all tokens so far."""
        view = self._buffer[: self._length]
        view.flags.writeable = False
        return view

    def reply_room(self) -> int:
        """Most tokens that the next reply may have. Raises ContextFullError where that is too few."""
        room = self._max_context - self._length
        if self._full or room < self._min_reply:
            raise ContextFullError(f"{self._length} of {self._max_context} tokens are used")
        return min(room, self._max_reply)

    def add_reply(self, token_ids: np.ndarray) -> None:
        self._append(token_ids)
        self._closed = self._chat.is_closed(token_ids)

    def add_observations(self, texts: list[str]) -> None:
        """What does not fit is not appended: then the context is full and the dialogue over."""
        self._append(self._chat.observations(texts, closed=self._closed))

    def _append(self, token_ids: np.ndarray) -> None:
        end = self._length + len(token_ids)
        if end > self._max_context:
            self._full = True
            return
        self._buffer[self._length : end] = token_ids
        self._length = end


class TokenPolicy:
    """Policy over an engine that takes and gives token ids."""

    def __init__(self, client: EngineClient, chat: ChatFormat) -> None:
        self._client = client
        self._chat = chat

    def open(
        self, *, system: str, user: str, session_id: str, seed: int, max_context: int, max_reply: int,
        temperature: float,
    ) -> TokenDialogue:  # fmt: skip
        history = TokenHistory(self._chat, system=system, user=user, max_context=max_context, max_reply=max_reply)
        return TokenDialogue(
            self._client, self._chat, history, session_id=session_id, seed=seed, temperature=temperature
        )


class TokenDialogue:
    """One conversation with an engine, token-exact: what was sampled is what the next prompt holds."""

    def __init__(
        self, client: EngineClient, chat: ChatFormat, history: TokenHistory, *, session_id: str, seed: int,
        temperature: float,
    ) -> None:  # fmt: skip
        self._client = client
        self._chat = chat
        self._history = history
        self._session_id = session_id
        self._seed = seed
        self._temperature = temperature
        self._turn = 0

    async def generate(self) -> Reply:
        prompt = self._history.prompt
        params = SamplingParams(
            max_tokens=self._history.reply_room(),
            temperature=self._temperature,
            seed=turn_seed(self._seed, self._turn),
            stop_token_ids=self._chat.stop_token_ids,
        )
        completion = await self._client.generate(prompt, params, self._session_id)
        check_completion(completion, params)
        self._turn += 1
        self._history.add_reply(completion.token_ids)
        return Reply(text=self._chat.decode(completion.token_ids), prompt_token_ids=prompt, completion=completion)

    def observe(self, observations: list[str]) -> None:
        self._history.add_observations(observations)


def turn_seed(seed: int, turn: int) -> int:
    """A sampling seed of its own for every turn; the same dialogue seed gives the same series."""
    return int(np.random.SeedSequence([seed % 2**63, turn]).generate_state(1)[0]) & 0x7FFFFFFF


def check_completion(completion: Completion, params: SamplingParams) -> None:
    """Raises RolloutError where an engine's answer contradicts itself, before anything is trained on it."""
    num_tokens = len(completion.token_ids)
    lengths = (num_tokens, len(completion.logprobs), len(completion.policy_versions))
    if len(set(lengths)) != 1:
        raise RolloutError(f"the engine returned {lengths} token ids, logprobs and versions; they must be as many")
    if not 0 < num_tokens <= params.max_tokens:
        raise RolloutError(f"the engine returned {num_tokens} tokens; between 1 and {params.max_tokens} were asked for")
    if not np.isfinite(completion.logprobs).all():
        raise RolloutError("the engine returned logprobs that are not finite; the weights it serves may be broken")
    ends_itself = int(completion.token_ids[-1]) in params.stop_token_ids
    if completion.finish_reason == "stop" and params.stop_token_ids and not ends_itself:
        raise RolloutError("the engine says that a reply ended itself, but its last token is no stop token")


def check_prefix(previous_prompt: np.ndarray, previous_output: np.ndarray, prompt: np.ndarray) -> None:
    """Raises TokenPrefixError unless `prompt` ([P] int32) starts with the previous prompt and output, id by id."""
    split, end = len(previous_prompt), len(previous_prompt) + len(previous_output)
    if (
        len(prompt) < end
        or not np.array_equal(prompt[:split], previous_prompt)
        or not np.array_equal(prompt[split:end], previous_output)
    ):
        raise TokenPrefixError(
            f"the prompt of {len(prompt)} tokens does not start with the {end} tokens of the turn before; "
            "something re-tokenised the conversation"
        )
