"""Attention over packed rows: the tiled path against the definition, and rows that never mix their segments."""

from __future__ import annotations

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxagent.models.attention import attend, masked_attention
from jaxagent.models.config import ComputeConfig
from jaxagent.models.fused import segment_spans

# Lengths of the segments of two packed rows; 0 as id is padding.
ROWS = {
    "one segment": ([(1, 96)], [(1, 96)]),
    "several, unaligned": ([(1, 5), (2, 61), (3, 30)], [(1, 33), (2, 1), (3, 62)]),
    "padded": ([(1, 40), (0, 56)], [(1, 70), (2, 6), (0, 20)]),
    "empty row": ([(0, 96)], [(1, 96)]),
}


def _segment_ids(rows) -> np.ndarray:
    return np.stack([np.concatenate([np.full(length, name) for name, length in row]) for row in rows]).astype(np.int32)


def _inputs(num_tokens: int, *, heads: int = 4, kv_heads: int = 2, head_dim: int = 8) -> list[np.ndarray]:
    rng = np.random.default_rng(0)
    shapes = [(2, num_tokens, count, head_dim) for count in (heads, kv_heads, kv_heads, heads)]
    return [rng.normal(size=shape).astype(np.float32) for shape in shapes]


def _obvious_attention(q, k, v, segment_ids, window=10**9) -> np.ndarray:
    out = np.zeros(q.shape, np.float64)
    group = q.shape[2] // k.shape[2]
    for row, token, head in np.ndindex(q.shape[:3]):
        first = max(0, token - window + 1)
        seen = [key for key in range(first, token + 1) if segment_ids[row, key] == segment_ids[row, token]]
        keys, values = k[row, seen, head // group].astype(np.float64), v[row, seen, head // group]
        weights = np.exp(keys @ q[row, token, head] / np.sqrt(q.shape[-1]))
        out[row, token, head] = weights @ values / weights.sum()
    return out


@partial(jax.jit, static_argnames="compute")
def _with_gradients(q, k, v, segment_ids, cotangent, compute, window=None):
    out, pull = jax.vjp(lambda q, k, v: attend(q, k, v, segment_ids, compute, window=window), q, k, v)
    return out, pull(cotangent)


@pytest.mark.parametrize("rows", ROWS.values(), ids=ROWS.keys())
def test_masked_attention_is_softmax_over_the_earlier_tokens_of_the_segment(rows):
    segment_ids = _segment_ids(rows)
    q, k, v, _ = _inputs(segment_ids.shape[1])
    out = masked_attention(q, k, v, segment_ids)
    np.testing.assert_allclose(out, _obvious_attention(q, k, v, segment_ids), atol=1e-5)
    out = masked_attention(q, k, v, segment_ids, window=jnp.int32(9))
    np.testing.assert_allclose(out, _obvious_attention(q, k, v, segment_ids, window=9), atol=1e-5)


@pytest.mark.parametrize("blocks", [(16, 16), (32, 16), (16, 64), (40, 24), (512, 512)], ids=str)
@pytest.mark.parametrize("rows", ROWS.values(), ids=ROWS.keys())
@pytest.mark.parametrize("window", [None, 1, 20])
def test_tiles_give_the_outputs_and_gradients_of_the_definition(rows, blocks, window):
    segment_ids = _segment_ids(rows)
    q, k, v, cotangent = _inputs(segment_ids.shape[1])
    cotangent *= (segment_ids != 0)[:, :, None, None]  # what padding computes means nothing
    compute = ComputeConfig(attention="blockwise", block_q=blocks[0], block_kv=blocks[1])
    masked = ComputeConfig(attention="masked")
    out, gradients = _with_gradients(q, k, v, segment_ids, cotangent, compute, window)
    expected, expected_gradients = _with_gradients(q, k, v, segment_ids, cotangent, masked, window)
    keep = segment_ids != 0
    assert np.isfinite(out).all()
    np.testing.assert_allclose(out[keep], expected[keep], atol=2e-6)
    for gradient, wanted in zip(gradients, expected_gradients, strict=True):
        np.testing.assert_allclose(gradient, wanted, atol=1e-5)


def test_scores_of_a_thousand_do_not_overflow():
    segment_ids = np.ones((2, 64), np.int32)
    q, k, v, _ = _inputs(64)
    compute = ComputeConfig(attention="blockwise", block_q=16, block_kv=16)
    out = attend(q * 100, k * 100, v, segment_ids, compute)
    np.testing.assert_allclose(out, masked_attention(q * 100, k * 100, v, segment_ids), atol=1e-4)


def test_bfloat16_stays_near_float32():
    segment_ids = _segment_ids(ROWS["several, unaligned"])
    q, k, v, _ = _inputs(segment_ids.shape[1])
    half = [jnp.asarray(x, jnp.bfloat16) for x in (q, k, v)]
    compute = ComputeConfig(attention="blockwise", block_q=16, block_kv=32)
    out = attend(half[0], half[1], half[2], segment_ids, compute)
    assert out.dtype == jnp.bfloat16
    np.testing.assert_allclose(out.astype(jnp.float32), masked_attention(q, k, v, segment_ids), atol=0.05)


def test_a_long_row_needs_tiles_and_not_a_square_of_memory():
    tokens, heads, head_dim = 8192, 8, 16
    segment_ids = np.ones((1, tokens), np.int32)
    q, k, v = (jax.ShapeDtypeStruct((1, tokens, count, head_dim), np.float32) for count in (heads, 2, 2))
    gradient = jax.grad(lambda q, k, v: attend(q, k, v, segment_ids, ComputeConfig()).sum(), argnums=(0, 1, 2))
    temporary_bytes = jax.jit(gradient).lower(q, k, v).compile().memory_analysis().temp_size_in_bytes
    inputs_bytes = 4 * tokens * heads * head_dim
    assert temporary_bytes < 12 * inputs_bytes
    assert temporary_bytes < 4 * heads * tokens * tokens / 40


def test_a_block_size_of_zero_is_refused_by_name():
    with pytest.raises(ValueError, match="block_q=0 must be positive"):
        ComputeConfig(block_q=0)


def test_segments_are_found_by_their_places():
    ids = jnp.asarray([[1, 1, 2, 2, 2, 0, 0], [7] * 7, [0] * 7, [1, 2, 2, 3, 0, 0, 1], [1, 2, 1, 2, 1, 2, 1]])
    starts, lengths, how_many = segment_spans(ids, most=4)
    assert starts.tolist() == [[0, 2, -1, -1], [0, -1, -1, -1], [-1] * 4, [0, 1, 3, 6], [0, 1, 2, 3]]
    assert lengths.tolist() == [[2, 3, -1, -1], [7, -1, -1, -1], [-1] * 4, [1, 2, 1, 1], [1, 1, 1, 1]]
    assert how_many.tolist() == [2, 1, 0, 4, 7]
