"""Causal attention over packed rows: a token sees the earlier tokens of its own segment, and no dense [T, T] mask.

Axes: B rows, T tokens of a row, N query heads, K key/value heads (N = K * G), H head_dim; q and s index queries and
keys of a tile. A segment is one contiguous run of equal segment_ids in a row, and 0 is padding, whose outputs mean
nothing. With a window a token sees the last `window` tokens only, itself included. Tiles that lie in the future, in
other segments or before the window, or hold padding alone, are skipped.

Two paths give the same numbers up to rounding:
    masked      all scores at once: for rows of a tile or two, and the oracle of the tests
    blockwise   tiles with a running softmax (FlashAttention's order): memory linear in T, compile time independent of
                T. Only the output and the log-sum-exp are kept; the backward pass recomputes the scores.
"""

from __future__ import annotations

import math
from functools import partial

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from jaxagent.models.config import ComputeConfig

_NEGATIVE = -1e30
"""Score of a key that must not be seen: finite, so that a tile without any visible key gives no NaN."""


def attend(
    q_BTNH: Float[Array, "B T N H"],
    k_BTKH: Float[Array, "B T K H"],
    v_BTKH: Float[Array, "B T K H"],
    segment_ids_BT: Int[Array, "B T"],
    compute: ComputeConfig,
    *,
    scale: float | None = None,
    window: Int[Array, ""] | None = None,
) -> Float[Array, "B T N H"]:
    """Softmax(scale q k^T) v within each segment, causally, on the path that `compute` asks for.

    `scale` is 1 / sqrt(H) where None is given; `window` may be traced, so that layers which differ in it share a
    program.
    """
    num_tokens = q_BTNH.shape[1]
    path = compute.attention
    if path == "auto":
        path = "masked" if num_tokens <= compute.masked_max_tokens else "blockwise"
    if path == "masked":
        return masked_attention(q_BTNH, k_BTKH, v_BTKH, segment_ids_BT, scale=scale, window=window)
    block_q, block_kv = min(compute.block_q, num_tokens), min(compute.block_kv, num_tokens)
    padding = -num_tokens % math.lcm(block_q, block_kv)
    q_BTNH, k_BTKH, v_BTKH = _pad_tokens(q_BTNH, padding), _pad_tokens(k_BTKH, padding), _pad_tokens(v_BTKH, padding)
    segment_ids_BT = _pad_tokens(segment_ids_BT, padding)
    # Heads lead, so that each head's tile is one contiguous matrix.
    batch, padded, num_heads, head_dim = q_BTNH.shape
    num_kv = k_BTKH.shape[2]
    factor: float = head_dim**-0.5 if scale is None else scale
    q_BTKGH = (q_BTNH * factor).reshape(batch, padded, num_kv, num_heads // num_kv, head_dim)
    q_BKGTH = jnp.transpose(q_BTKGH, (0, 2, 3, 1, 4))
    k_BKTH, v_BKTH = k_BTKH.swapaxes(1, 2), v_BTKH.swapaxes(1, 2)
    out_BKGTH: Array = jnp.asarray(_blockwise(q_BKGTH, k_BKTH, v_BKTH, segment_ids_BT, window, block_q, block_kv))
    out_BTNH = jnp.transpose(out_BKGTH, (0, 3, 1, 2, 4)).reshape(batch, padded, num_heads, head_dim)
    return out_BTNH[:, :num_tokens]


def masked_attention(
    q_BTNH: Float[Array, "B T N H"],
    k_BTKH: Float[Array, "B T K H"],
    v_BTKH: Float[Array, "B T K H"],
    segment_ids_BT: Int[Array, "B T"],
    *,
    scale: float | None = None,
    window: Int[Array, ""] | None = None,
) -> Float[Array, "B T N H"]:
    """The definition, with all scores in memory."""
    batch, num_tokens, num_heads, head_dim = q_BTNH.shape
    num_kv = k_BTKH.shape[2]
    q_BTKGH = q_BTNH.reshape(batch, num_tokens, num_kv, num_heads // num_kv, head_dim)
    scores = jnp.einsum("BqKGH,BsKH->BKGqs", q_BTKGH, k_BTKH, preferred_element_type=jnp.float32)
    scores = scores * (head_dim**-0.5 if scale is None else scale)
    index_T = jnp.arange(num_tokens)
    visible = segment_ids_BT[:, :, None] == segment_ids_BT[:, None, :]
    visible = visible & _in_reach(index_T, index_T, window)[None]
    probs = jax.nn.softmax(jnp.where(visible[:, None, None], scores, _NEGATIVE), axis=-1).astype(v_BTKH.dtype)
    return jnp.einsum("BKGqs,BsKH->BqKGH", probs, v_BTKH).reshape(q_BTNH.shape)


# Blockwise ----------------------------------------------------------------------------------------------------------


@partial(jax.custom_vjp, nondiff_argnums=(5, 6))
def _blockwise(
    q_BKGTH: Array,
    k_BKTH: Array,
    v_BKTH: Array,
    segment_ids_BT: Array,
    window: Array | None,
    block_q: int,
    block_kv: int,
) -> Array:
    return _blockwise_forward(q_BKGTH, k_BKTH, v_BKTH, segment_ids_BT, window, block_q, block_kv)[0]


def _blockwise_forward(q_BKGTH, k_BKTH, v_BKTH, segment_ids_BT, window, block_q: int, block_kv: int):
    batch, num_kv, group, num_tokens, head_dim = q_BKGTH.shape
    first_key_T = _first_key(segment_ids_BT)

    def one_query_block(_, index):
        start = index * block_q
        q_tile = jax.lax.dynamic_slice_in_dim(q_BKGTH, start, block_q, axis=3)

        def one_key_block(j, carry):
            highest, total, out = carry
            key_start = j * block_kv
            k_tile = jax.lax.dynamic_slice_in_dim(k_BKTH, key_start, block_kv, axis=2)
            v_tile = jax.lax.dynamic_slice_in_dim(v_BKTH, key_start, block_kv, axis=2)
            scores = _tile_scores(q_tile, k_tile, segment_ids_BT, window, start, key_start)
            new_highest = jnp.maximum(highest, scores.max(axis=-1))
            decay = jnp.exp(highest - new_highest)
            weights = jnp.exp(scores - new_highest[..., None])
            # An all-hidden tile before a row's first visible one leaves weights of 1; the first visible score's decay
            # of exp(-1e30) = 0 wipes them, and every query sees itself in its last tile.
            out = out * decay[..., None] + jnp.einsum(
                "BKGqs,BKsH->BKGqH", weights.astype(v_tile.dtype), v_tile, preferred_element_type=jnp.float32
            )
            return new_highest, total * decay + weights.sum(axis=-1), out

        shape = (batch, num_kv, group, block_q)
        carry = jnp.full(shape, _NEGATIVE), jnp.zeros(shape), jnp.zeros((*shape, head_dim))
        first = _first_visible(first_key_T, start, window) // block_kv
        highest, total, out = jax.lax.fori_loop(first, _ceil_div(start + block_q, block_kv), one_key_block, carry)
        return None, ((out / total[..., None]).astype(q_BKGTH.dtype), highest + jnp.log(total))

    _, (out_tiles, logsumexp_tiles) = jax.lax.scan(one_query_block, None, jnp.arange(num_tokens // block_q))
    out_BKGTH = jnp.moveaxis(out_tiles, 0, 3).reshape(q_BKGTH.shape)
    logsumexp_BKGT = jnp.moveaxis(logsumexp_tiles, 0, 3).reshape(q_BKGTH.shape[:-1])
    return out_BKGTH, (q_BKGTH, k_BKTH, v_BKTH, segment_ids_BT, window, out_BKGTH, logsumexp_BKGT)


def _blockwise_backward(block_q: int, block_kv: int, saved: tuple[Array, ...], d_out_BKGTH: Array):
    q_BKGTH, k_BKTH, v_BKTH, segment_ids_BT, window, out_BKGTH, logsumexp_BKGT = saved
    delta_BKGT = (d_out_BKGTH * out_BKGTH).sum(axis=-1, dtype=jnp.float32)
    first_key_T = _first_key(segment_ids_BT)

    def one_query_block(carry, index):
        start = index * block_q
        q_tile, d_out_tile, logsumexp, delta = (
            jax.lax.dynamic_slice_in_dim(x, start, block_q, axis=3)
            for x in (q_BKGTH, d_out_BKGTH, logsumexp_BKGT, delta_BKGT)
        )

        def one_key_block(j, carry):
            d_q_tile, d_k, d_v = carry
            key_start = j * block_kv
            k_tile = jax.lax.dynamic_slice_in_dim(k_BKTH, key_start, block_kv, axis=2)
            v_tile = jax.lax.dynamic_slice_in_dim(v_BKTH, key_start, block_kv, axis=2)
            more_q, more_k, more_v = _tile_gradients(
                q_tile, d_out_tile, logsumexp, delta, k_tile, v_tile, segment_ids_BT, window, start, key_start
            )
            return d_q_tile + more_q, _add_block(d_k, more_k, key_start), _add_block(d_v, more_v, key_start)

        first = _first_visible(first_key_T, start, window) // block_kv
        d_q_tile = jnp.zeros(q_tile.shape, jnp.float32)
        last = _ceil_div(start + block_q, block_kv)
        d_q_tile, *carry = jax.lax.fori_loop(first, last, one_key_block, (d_q_tile, *carry))
        return tuple(carry), d_q_tile.astype(q_BKGTH.dtype)

    zeros = jnp.zeros(k_BKTH.shape, jnp.float32), jnp.zeros(v_BKTH.shape, jnp.float32)
    blocks = jnp.arange(q_BKGTH.shape[3] // block_q)
    (d_k, d_v), d_q_tiles = jax.lax.scan(one_query_block, zeros, blocks)
    d_q_BKGTH = jnp.moveaxis(d_q_tiles, 0, 3).reshape(q_BKGTH.shape)
    return d_q_BKGTH, d_k.astype(k_BKTH.dtype), d_v.astype(v_BKTH.dtype), None, None


_blockwise.defvjp(_blockwise_forward, _blockwise_backward)


# Tiles --------------------------------------------------------------------------------------------------------------


def _tile_scores(q_tile, k_tile, segment_ids_BT, window, query_start, key_start) -> Float[Array, "B K G q s"]:
    """Scores in float32; keys out of reach and of other segments get _NEGATIVE. q is scaled already."""
    scores = jnp.einsum("BKGqH,BKsH->BKGqs", q_tile, k_tile, preferred_element_type=jnp.float32)
    num_queries, num_keys = scores.shape[-2:]
    query_segments = jax.lax.dynamic_slice_in_dim(segment_ids_BT, query_start, num_queries, axis=1)
    key_segments = jax.lax.dynamic_slice_in_dim(segment_ids_BT, key_start, num_keys, axis=1)
    in_reach = _in_reach(query_start + jnp.arange(num_queries), key_start + jnp.arange(num_keys), window)
    visible_Bqs = (query_segments[:, :, None] == key_segments[:, None, :]) & in_reach[None]
    return jnp.where(visible_Bqs[:, None, None], scores, _NEGATIVE)


def _tile_gradients(
    q_tile, d_out_tile, logsumexp, delta, k_tile, v_tile, segment_ids_BT, window, query_start, key_start
):
    """Gradients of one tile: with P = softmax, dV = P^T dO, dS = P * (dO V^T - delta), dQ = dS K, dK = dS^T Q."""
    scores = _tile_scores(q_tile, k_tile, segment_ids_BT, window, query_start, key_start)
    probs = jnp.exp(scores - logsumexp[..., None])
    d_probs = jnp.einsum("BKGqH,BKsH->BKGqs", d_out_tile, v_tile, preferred_element_type=jnp.float32)
    d_scores = (probs * (d_probs - delta[..., None])).astype(q_tile.dtype)
    float32 = {"preferred_element_type": jnp.float32}
    d_v = jnp.einsum("BKGqs,BKGqH->BKsH", probs.astype(q_tile.dtype), d_out_tile, **float32)
    d_q = jnp.einsum("BKGqs,BKsH->BKGqH", d_scores, k_tile, **float32)
    d_k = jnp.einsum("BKGqs,BKGqH->BKsH", d_scores, q_tile, **float32)
    return d_q, d_k, d_v


def _in_reach(query_index: Array, key_index: Array, window: Array | None) -> Array:
    """[queries, keys]: neither in the future nor before the window."""
    distance = query_index[:, None] - key_index[None, :]
    return distance >= 0 if window is None else (distance >= 0) & (distance < window)


def _first_visible(first_key_T: Array, query_start: Array, window: Array | None) -> Array:
    """The first key that a query from query_start on may see."""
    first = first_key_T[query_start]
    return first if window is None else jnp.maximum(first, query_start - window + 1)


def _first_key(segment_ids_BT: Int[Array, "B T"]) -> Int[Array, "T"]:
    """For each position the start of its segment, the earliest over the rows: tiles before it hold nothing visible.

    Padding asks for no tile but its own.
    """
    index_T = jnp.arange(segment_ids_BT.shape[1])
    changed = segment_ids_BT[:, 1:] != segment_ids_BT[:, :-1]
    begins_BT = jnp.pad(changed, ((0, 0), (1, 0)), constant_values=True) | (segment_ids_BT == 0)
    start_BT = jax.lax.cummax(jnp.where(begins_BT, index_T[None], 0), axis=1)
    return start_BT.min(axis=0)


def _add_block(total, block, start):
    current = jax.lax.dynamic_slice_in_dim(total, start, block.shape[2], axis=2)
    return jax.lax.dynamic_update_slice_in_dim(total, current + block, start, axis=2)


def _pad_tokens(x: Array, padding: int) -> Array:
    return x if padding == 0 else jnp.pad(x, ((0, 0), (0, padding)) + ((0, 0),) * (x.ndim - 2))


def _ceil_div(a, b: int):
    return -(-a // b)
