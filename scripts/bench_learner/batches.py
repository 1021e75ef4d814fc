"""The batches that both sides train on, and the model's shape. NumPy alone: either environment imports it.

Axes: S sequences. A sequence is a prompt and a completion of the policy's own tokens. Token 0 is padding, 1 ends.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

ROW_TOKENS, PROMPT_TOKENS = 512, 64
PAD, END = 0, 1
LEARNING_RATE, B1, B2, MAX_GRAD_NORM = 1e-5, 0.9, 0.95, 1.0
GAMMA, GAE_LAMBDA, CLIP_LOW, CLIP_HIGH, VALUE_CLIP = 1.0, 0.95, 0.2, 0.28, 0.2
SIZES = {
    "1m": {"num_layers": 2, "hidden": 128, "width": 384, "heads": 4, "kv_heads": 2, "vocab": 2048},
    "5m": {"num_layers": 4, "hidden": 256, "width": 768, "heads": 4, "kv_heads": 2, "vocab": 4096},
}
"""Untied embeddings, biases on q, k, v: the Qwen2 architecture. The numbers of parameters are about these."""


class Sequences(NamedTuple):
    """One entry a sequence in each."""

    prompts: list[np.ndarray]
    completions: list[np.ndarray]
    rewards: np.ndarray

    @property
    def num_tokens(self) -> int:
        return sum(len(p) + len(c) for p, c in zip(self.prompts, self.completions, strict=True))


def draw(kind: str, *, vocab: int) -> Sequences:
    """dense: every sequence fills its row. ragged: lengths whose mean is a quarter of it."""
    rng = np.random.default_rng(0)
    longest = ROW_TOKENS - PROMPT_TOKENS
    if kind == "dense":
        prompts, lengths = [PROMPT_TOKENS] * 8, np.full(8, longest)
    else:
        # Prompts of 16 and completions of 16 to 208, one of full length: 128 tokens in the mean, of 512.
        prompts = [16] * 32
        lengths = rng.integers(16, 197, 32)
        lengths[0] = longest
    return Sequences(
        prompts=[rng.integers(2, vocab, length).astype(np.int32) for length in prompts],
        completions=[np.append(rng.integers(2, vocab, n - 1), END).astype(np.int32) for n in lengths],
        rewards=rng.choice([-1.0, 1.0, 2.0, 3.0], len(lengths)).astype(np.float32),
    )
