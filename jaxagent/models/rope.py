"""Rotary position embedding: frequencies of the supported scalings, angles of positions, and the rotation itself.

Axes: B rows, T tokens of a row, N heads, H head_dim.
"""

from __future__ import annotations

import math

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int

from jaxagent.models.config import RopeConfig

Rotation = tuple[Float[Array, "B T half"], Float[Array, "B T half"]]
"""Cosine and sine of every position's angles, float32."""


def rotation_of(positions_BT: Int[Array, "B T"], head_dim: int, rope: RopeConfig) -> Rotation:
    """Angles of positions; float32 throughout, since bfloat16 can't tell positions apart beyond 256."""
    angles = positions_BT[..., None].astype(jnp.float32) * rotary_frequencies(head_dim, rope)[None, None]
    return jnp.cos(angles) * rope.attention_factor, jnp.sin(angles) * rope.attention_factor


def rotate(x_BTNH: Array, rotation: Rotation) -> Array:
    """Turn the pairs (i, i + H/2) of each head, in float32."""
    cos, sin = (part[:, :, None, :] for part in rotation)
    first, second = jnp.split(x_BTNH.astype(jnp.float32), 2, axis=-1)
    return jnp.concatenate([first * cos - second * sin, second * cos + first * sin], axis=-1).astype(x_BTNH.dtype)


def rotary_frequencies(head_dim: int, rope: RopeConfig) -> np.ndarray:
    """Radians per position of each of the head_dim / 2 pairs.

    default   theta^(-2i / head_dim)
    linear    that, divided by factor
    llama3    (Llama 3.1) waves longer than original_max_positions / low_freq_factor are divided by factor, those
              shorter than original_max_positions / high_freq_factor stay, and between the two the change is blended
              linearly in the frequency
    yarn      (arXiv 2309.00071) pairs that turn beta_fast times or more within original_max_positions stay, those that
              turn beta_slow times or fewer are divided by factor, and between the two the change is blended linearly
              in the pair's index
    """
    frequencies = np.float32(1.0) / np.float32(rope.theta) ** (np.arange(0, head_dim, 2, dtype=np.float32) / head_dim)
    if rope.kind == "linear":
        frequencies = frequencies / rope.factor
    if rope.kind in ("llama3", "yarn"):
        kept = _kept_by_llama3(frequencies, rope) if rope.kind == "llama3" else _kept_by_yarn(head_dim, rope)
        frequencies = kept * frequencies + (1.0 - kept) * frequencies / rope.factor
    return frequencies.astype(np.float32)


def _kept_by_llama3(frequencies: np.ndarray, rope: RopeConfig) -> np.ndarray:
    turns = rope.original_max_positions * frequencies / (2 * np.pi)
    return np.clip((turns - rope.low_freq_factor) / (rope.high_freq_factor - rope.low_freq_factor), 0.0, 1.0)


def _kept_by_yarn(head_dim: int, rope: RopeConfig) -> np.ndarray:
    def pair_that_turns(times: float) -> float:
        return head_dim * math.log(rope.original_max_positions / (times * 2 * math.pi)) / (2 * math.log(rope.theta))

    first, last = pair_that_turns(rope.beta_fast), pair_that_turns(rope.beta_slow)
    if rope.truncate:
        first, last = math.floor(first), math.ceil(last)
    # The published code bounds the last pair by head_dim - 1, though there are half as many: models were made with it.
    first, last = max(first, 0), min(last, head_dim - 1)
    width = last - first or 0.001
    return 1.0 - np.clip((np.arange(head_dim // 2, dtype=np.float32) - first) / width, 0.0, 1.0)
