"""Trajectory -> one stream of token ids, exactly as the engine saw and sampled them. Needs NumPy only."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np

from rollout.types import StopReason, Trajectory, Turn


class TrajectoryError(ValueError):
    """A trajectory that cannot be trained on. `reason` is what the store records when it is dropped."""

    def __init__(self, trajectory_id: str, reason: str) -> None:
        super().__init__(
            f"trajectory {trajectory_id!r}: {reason}; drop it with this reason in the store "
            "(jaxagent.batches.sequences.screen finds such trajectories before an update)"
        )
        self.trajectory_id = trajectory_id
        self.reason = reason

    def __reduce__(self) -> tuple[type[TrajectoryError], tuple[str, str]]:
        return type(self), (self.trajectory_id, self.reason)


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenSequence:
    """A trajectory's last prompt and last output: together they hold every token of it, once. All arrays are [T]."""

    trajectory_id: str
    token_ids: np.ndarray  # int32
    loss_mask: np.ndarray  # bool, True on tokens that the policy sampled
    rollout_logprobs: np.ndarray  # float32, 0 outside loss_mask
    policy_versions: np.ndarray  # int32, -1 outside loss_mask
    truncated: bool
    """Length ended it: the context was full, or the last reply was cut."""

    @property
    def num_tokens(self) -> int:
        return len(self.token_ids)

    @property
    def num_policy_tokens(self) -> int:
        return int(self.loss_mask.sum())

    @property
    def oldest_version(self) -> int:
        return int(self.policy_versions[self.loss_mask].min())


def screen(
    trajectories: Iterable[Trajectory], *, row_tokens: int, vocab_size: int | None = None, need_logprobs: bool = True
) -> tuple[list[Trajectory], dict[str, str]]:
    """Splits trajectories into those that can be trained on and {trajectory_id: reason} for the others."""
    kept: list[Trajectory] = []
    dropped: dict[str, str] = {}
    for trajectory in trajectories:
        try:
            to_sequence(trajectory, row_tokens=row_tokens, vocab_size=vocab_size, need_logprobs=need_logprobs)
        except TrajectoryError as error:
            dropped[trajectory.trajectory_id] = error.reason
        else:
            kept.append(trajectory)
    return kept, dropped


def to_sequence(
    trajectory: Trajectory, *, row_tokens: int, vocab_size: int | None = None, need_logprobs: bool = True
) -> TokenSequence:
    """The trajectory as one stream, checked.

    Dialogues only append: prompt k+1 starts with prompt k + output k, so output k lies in the last stream at
    offset len(prompt k). With `need_logprobs` every policy token needs a logprob and a version of the engine
    (an expert's tokens have none). Raises TrajectoryError.
    """
    name = trajectory.trajectory_id
    if not trajectory.turns:
        raise TrajectoryError(name, "it has no turns")
    last = trajectory.turns[-1]
    token_ids = np.concatenate([last.prompt_token_ids, last.token_ids]).astype(np.int32)
    if len(token_ids) > row_tokens:
        raise TrajectoryError(name, f"its {len(token_ids)} tokens are more than learner.row_tokens={row_tokens}")
    loss_mask = np.zeros(len(token_ids), bool)
    rollout_logprobs = np.zeros(len(token_ids), np.float32)
    policy_versions = np.full(len(token_ids), -1, np.int32)
    end = 0
    for index, turn in enumerate(trajectory.turns):
        start = _locate(name, index, turn, token_ids, previous_end=end)
        end = start + len(turn.token_ids)
        loss_mask[start:end] = True
        rollout_logprobs[start:end] = turn.logprobs
        policy_versions[start:end] = turn.policy_versions
    sequence = TokenSequence(
        trajectory_id=name,
        token_ids=token_ids,
        loss_mask=loss_mask,
        rollout_logprobs=rollout_logprobs,
        policy_versions=policy_versions,
        truncated=trajectory.stop_reason is StopReason.MAX_TOKENS or last.truncated,
    )
    _check_values(sequence, vocab_size=vocab_size, need_logprobs=need_logprobs)
    return sequence


def _locate(name: str, index: int, turn: Turn, token_ids: np.ndarray, *, previous_end: int) -> int:
    """Where the turn's output starts in the last stream; raises where the dialogue did more than append."""
    start, num_output = len(turn.prompt_token_ids), len(turn.token_ids)
    if not len(turn.logprobs) == len(turn.policy_versions) == num_output:
        raise TrajectoryError(
            name,
            f"turn {index} has {num_output} tokens, {len(turn.logprobs)} logprobs and "
            f"{len(turn.policy_versions)} policy versions",
        )
    same_prompt = np.array_equal(token_ids[:start], turn.prompt_token_ids)
    same_output = np.array_equal(token_ids[start : start + num_output], turn.token_ids)
    if start < previous_end or not same_prompt or not same_output:
        raise TrajectoryError(
            name,
            f"the prompt after turn {index} doesn't start with the prompt and output of "
            "that turn, so its tokens can't be located",
        )
    return start


def _check_values(sequence: TokenSequence, *, vocab_size: int | None, need_logprobs: bool) -> None:
    name, mask = sequence.trajectory_id, sequence.loss_mask
    if not mask.any():
        raise TrajectoryError(name, "the policy sampled no token")
    if mask[0]:
        raise TrajectoryError(name, "its first token was sampled from an empty prompt and has no logprob here")
    low, high = int(sequence.token_ids.min()), int(sequence.token_ids.max())
    if low < 0 or (vocab_size is not None and high >= vocab_size):
        raise TrajectoryError(name, f"token ids {low}..{high} leave the vocabulary of {vocab_size}")
    if not need_logprobs:
        return
    if not np.isfinite(sequence.rollout_logprobs[mask]).all():
        raise TrajectoryError(name, "the engine's logprobs aren't all finite")
    if sequence.oldest_version < 0:
        raise TrajectoryError(name, "its tokens have no policy version (not sampled by the engine)")
