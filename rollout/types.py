"""Records that cross a process in the rollout flow, and the contract of a policy."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, Protocol

import numpy as np

from sandbox.types import Judgement

SCHEMA_VERSION = 1


class StopReason(StrEnum):
    """Why a trajectory ended."""

    FINISHED = "finished"  # the policy answered without a tool call, or its one answer was given (single-turn)
    MAX_TURNS = "max_turns"
    MAX_TOKENS = "max_tokens"  # the context is full
    MAX_SECONDS = "max_seconds"
    MAX_SANDBOX_SECONDS = "max_sandbox_seconds"


@dataclass(frozen=True, slots=True, kw_only=True)
class SamplingParams:
    """How the engine samples. top_p stays 1: vLLM renormalises logprobs after top-p, the trainer does not."""

    max_tokens: int
    temperature: float = 1.0
    seed: int | None = None
    stop_token_ids: list[int] = field(default_factory=list)


@dataclass(frozen=True, slots=True, kw_only=True)
class Usage:
    """Tokens of one request as a server counted them, which is what it bills."""

    prompt_tokens: int
    completion_tokens: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Completion:
    """What an engine sampled: one entry a token in each array."""

    token_ids: np.ndarray  # [T] int32
    logprobs: np.ndarray  # [T] float32, of the sampled token, as the engine computed it
    policy_versions: np.ndarray  # [T] int32, version of the weights that sampled it
    finish_reason: str  # "stop" | "length"
    usage: Usage | None = None
    """Of a server that shows no tokens; None where the arrays say it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolCall:
    name: str
    arguments: dict[str, Any]
    error: str | None = None
    """Set where the call was malformed (unknown tool, bad arguments, broken syntax): returned to the model."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Turn:
    """One generate + observe. Token arrays are empty for a policy that only speaks text."""

    prompt_token_ids: np.ndarray  # [P] int32, the whole prompt of this turn
    token_ids: np.ndarray  # [T] int32
    logprobs: np.ndarray  # [T] float32
    policy_versions: np.ndarray  # [T] int32
    text: str
    tool_calls: list[ToolCall] = field(default_factory=list)
    observations: list[str] = field(default_factory=list)
    judgement: Judgement | None = None
    """The last judgement that a tool of this turn obtained."""
    routing: np.ndarray | None = None
    truncated: bool = False
    """The turn hit max_tokens before it ended itself."""
    usage: Usage | None = None
    """Completion.usage."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Trajectory:
    """The record of one rollout: everything a learner, a viewer or a replay needs."""

    trajectory_id: str
    task_id: str
    sample_index: int
    stage: str
    seed: int
    turns: list[Turn]
    judgement: Judgement
    """Of the final workspace."""
    stop_reason: StopReason
    seconds: float = 0.0
    schema_version: int = SCHEMA_VERSION

    def __reduce__(self) -> tuple[Callable[[bytes], Trajectory], tuple[bytes]]:
        """Crosses a process as it is stored: each prompt holds all turns before it, so as plain arrays a long dialogue
        would take the square of its length (150 turns of 131,072 tokens: 40 MB instead of 2)."""
        from rollout.trajectory_codec import decode_trajectory, encode_trajectory  # which is made of these types

        return decode_trajectory, (encode_trajectory(self),)

    @property
    def oldest_version(self) -> int:
        """Version of the oldest weights that sampled a token of it; -1 for a scripted policy."""
        return min((int(turn.policy_versions.min()) for turn in self.turns if turn.policy_versions.size), default=-1)


@dataclass(frozen=True, slots=True, kw_only=True)
class Reply:
    """A policy's answer in a dialogue: the turn's tokens and their text."""

    text: str
    prompt_token_ids: np.ndarray
    completion: Completion


class Dialogue(Protocol):
    """One conversation with a policy. It only ever appends: prompt k+1 starts with prompt k + output k."""

    async def generate(self) -> Reply:
        """Raises ContextFullError when the context has no room for another reply."""
        ...

    def observe(self, observations: list[str]) -> None:
        """Appends the tools' results, one text a tool call, as the next input of the policy."""
        ...


class ContextFullError(Exception):
    """No room is left in the context for the next reply."""


class Policy(Protocol):
    """Anything that can answer: vLLM engine, OpenAI-compatible endpoint, scripted expert."""

    def open(
        self,
        *,
        system: str,
        user: str,
        session_id: str,
        seed: int,
        max_context: int,
        max_reply: int,
        temperature: float,
    ) -> Dialogue: ...


class RolloutError(RuntimeError):
    """The rollout failed (engine, endpoint, worker), not the policy: retry it elsewhere, count it, never score it."""


class EngineError(RolloutError):
    """The engine is gone, silent or not what it should be: start another one and retry there."""


class TokenPrefixError(RolloutError):
    """A prompt does not start with the previous prompt and output: this trajectory must not be trained on."""
