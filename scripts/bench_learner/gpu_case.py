"""What the GPU part trains: the shape of Qwen2.5-Coder-0.5B, and trajectories packed into rows.

NumPy alone: each side imports it. Axes: R rows, T tokens of a row.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from jaxagent.batches.packing import assign_rows

NUMBERS = {
    "vocab_size": 151_936,
    "hidden_size": 896,
    "intermediate_size": 4864,
    "num_layers": 24,
    "num_heads": 14,
    "num_kv_heads": 2,
    "rms_norm_eps": 1e-6,
}
"""Of Qwen2.5-Coder-0.5B, with tied embeddings and biases on q, k, v; weights are random."""
HEAD_DIM, ROPE_THETA = 64, 1e6
LEARNING_RATE, B1, B2, MAX_GRAD_NORM, CLIP_LOW, CLIP_HIGH = 1e-6, 0.9, 0.95, 1.0, 0.2, 0.28
MISSES = 50


class Case(NamedTuple):
    """One entry a trajectory in each."""

    token_ids: list[np.ndarray]
    masks: list[np.ndarray]
    """True on the policy's own tokens; the first quarter is a prompt."""
    advantages: list[np.ndarray]
    rows: list[list[int]]
    """Trajectories of each row, as the learner packs them."""

    @property
    def lengths(self) -> list[int]:
        return [len(ids) for ids in self.token_ids]

    def packed(self, arrays: list[np.ndarray], row_tokens: int) -> np.ndarray:
        """One array a trajectory -> [R, T], 0 behind the last of a row."""
        rows = [np.concatenate([arrays[index] for index in row]) for row in self.rows]
        return np.stack([np.pad(row, (0, row_tokens - len(row))) for row in rows])


def draw(num_rows: int, row_tokens: int, *, least: int, greatest: int) -> Case:
    """Trajectories of `least` to `greatest` tokens, as many as fit into so many rows."""
    rng = np.random.default_rng(0)
    lengths: list[int] = []
    misses = 0
    while misses < MISSES:
        length = int(rng.integers(least, greatest + 1))
        if len(assign_rows([*lengths, length], row_tokens=row_tokens)) <= num_rows:
            lengths.append(length)
        else:
            misses += 1
    masks = [np.arange(length) >= length // 4 for length in lengths]
    return Case(
        token_ids=[rng.integers(0, NUMBERS["vocab_size"], length).astype(np.int32) for length in lengths],
        masks=masks,
        advantages=[np.where(mask, rng.standard_normal(len(mask)), 0).astype(np.float32) for mask in masks],
        rows=assign_rows(lengths, row_tokens=row_tokens),
    )
