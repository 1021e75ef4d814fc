"""Sequences -> packed rows of a fixed length, grouped into microbatches of a fixed size."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np

from jaxagent.batches.batch import Batch
from jaxagent.batches.sequences import TokenSequence

MIN_MICROBATCH_SLOTS = 8
ROW_FRACTIONS = (4, 2, 1)
MOST_SEGMENTS = 16
"""Trajectories that a row holds at most: what fused attention over packed rows needs beside its inputs grows with it.
Rows are at most four times as long as their longest trajectory, so few hold more."""
Aggregation = Literal["trajectory_mean", "token_mean"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Shape:
    """Array shape of a batch; the same shape never compiles twice."""

    microbatches: int
    """Slots; a power of two, so few shapes occur. Empty slots cost memory and no time."""
    rows: int
    row_tokens: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Packed:
    """A batch and where each sequence lies in it."""

    batch: Batch
    num_microbatches: int
    """Slots in use, from the front."""
    places: list[tuple[int, int, int]]
    """(row counted over all microbatches, start, end) of each sequence, in the order given to `pack`."""

    def gather(self, array: np.ndarray) -> list[np.ndarray]:
        """[M, B, T] -> one [length] array a sequence."""
        rows = array.reshape(-1, array.shape[-1])
        return [rows[row, start:end] for row, start, end in self.places]

    def scatter(self, arrays: Sequence[np.ndarray]) -> np.ndarray:
        """One [length] array a sequence -> float32 [M, B, T], 0 elsewhere."""
        out = np.zeros(self.batch.token_ids.shape, np.float32)
        rows = out.reshape(-1, out.shape[-1])
        for (row, start, end), values in zip(self.places, arrays, strict=True):
            rows[row, start:end] = values
        return out


def choose_row_tokens(longest: int, *, row_tokens: int) -> int:
    """The shortest of three row lengths that holds `longest`: attention in short rows is cheaper."""
    for fraction in ROW_FRACTIONS:
        if row_tokens % fraction == 0 and longest <= row_tokens // fraction:
            return row_tokens // fraction
    raise ValueError(
        f"a trajectory of {longest} tokens is longer than learner.row_tokens={row_tokens}; "
        "raise learner.row_tokens or lower the stage's dialogue.max_context_tokens"
    )


def pack(
    sequences: Sequence[TokenSequence],
    rewards: Sequence[float],
    *,
    row_tokens: int,
    rows_per_microbatch: int,
    aggregation: Aggregation = "trajectory_mean",
) -> Packed:
    """First-fit-decreasing packing of whole sequences into rows of `row_tokens`.

    The loss weights make every loss a mean over these sequences: 1 / (sequences x policy tokens of the sequence),
    or 1 / policy tokens of all sequences for `token_mean`.
    """
    if not sequences:
        raise ValueError("a batch needs at least one trajectory")
    rows = assign_rows([sequence.num_tokens for sequence in sequences], row_tokens=row_tokens)
    num_microbatches = -(-len(rows) // rows_per_microbatch)
    shape = Shape(microbatches=num_slots(num_microbatches), rows=rows_per_microbatch, row_tokens=row_tokens)
    flat = _empty(shape.microbatches * shape.rows, row_tokens)
    total = sum(sequence.num_policy_tokens for sequence in sequences)
    places: list[tuple[int, int, int]] = [(0, 0, 0)] * len(sequences)
    for row, members in enumerate(rows):
        start = 0
        for segment, index in enumerate(members, start=1):
            sequence = sequences[index]
            tokens = total if aggregation == "token_mean" else len(sequences) * sequence.num_policy_tokens
            end = start + sequence.num_tokens
            _write(flat, row, slice(start, end), sequence, segment=segment, weight=1 / tokens, reward=rewards[index])
            places[index] = row, start, end
            start = end
    batch = Batch(*(array.reshape(shape.microbatches, shape.rows, row_tokens) for array in flat))
    return Packed(batch=batch, num_microbatches=num_microbatches, places=places)


def assign_rows(lengths: Sequence[int], *, row_tokens: int) -> list[list[int]]:
    """Indices of `lengths` by row: longest first, each into the first row with room and fewer than MOST_SEGMENTS."""
    rows: list[list[int]] = []
    room: list[int] = []
    for index in sorted(range(len(lengths)), key=lambda index: (-lengths[index], index)):
        length = lengths[index]
        if length > row_tokens:
            raise ValueError(f"a sequence of {length} tokens does not fit a row of {row_tokens}")
        row = next((row for row, free in enumerate(room) if free >= length), len(rows))
        if row == len(rows):
            rows.append([])
            room.append(row_tokens)
        rows[row].append(index)
        room[row] = room[row] - length if len(rows[row]) < MOST_SEGMENTS else 0
    return rows


def num_slots(num_microbatches: int) -> int:
    return max(MIN_MICROBATCH_SLOTS, 1 << (num_microbatches - 1).bit_length())


def _empty(num_rows: int, row_tokens: int) -> Batch:
    def zeros(dtype: type) -> np.ndarray:
        return np.zeros((num_rows, row_tokens), dtype)

    return Batch(
        token_ids=zeros(np.int32),
        positions=zeros(np.int32),
        segment_ids=zeros(np.int32),
        loss_mask=zeros(np.bool_),
        loss_weights=zeros(np.float32),
        rollout_logprobs=zeros(np.float32),
        rewards=zeros(np.float32),
    )


def _write(
    flat: Batch, row: int, span: slice, sequence: TokenSequence, *, segment: int, weight: float, reward: float
) -> None:
    def put(array: object, value: object) -> None:
        assert isinstance(array, np.ndarray)
        array[row, span] = value

    put(flat.token_ids, sequence.token_ids)
    put(flat.positions, np.arange(sequence.num_tokens))
    put(flat.segment_ids, segment)
    put(flat.loss_mask, sequence.loss_mask)
    put(flat.loss_weights, sequence.loss_mask * np.float32(weight))
    put(flat.rollout_logprobs, sequence.rollout_logprobs)
    rewards = np.zeros(sequence.num_tokens, np.float32)
    rewards[np.flatnonzero(sequence.loss_mask)[-1]] = reward
    put(flat.rewards, rewards)
