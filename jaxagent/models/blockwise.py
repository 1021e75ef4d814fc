"""Attention in tiles with a running softmax (FlashAttention's order, arXiv 2205.14135).

Axes: B rows, Q queries, T keys of a row, N query heads, K key/value heads (N = K * G), H head_dim; q and s index
queries and keys of a tile. Tiles that lie in the future, in other segments or before the window, or hold padding alone,
are skipped. Memory is linear in Q and T, and compile time independent of both. Only the output and the log-sum-exp are
kept, under the names in KEPT; the backward pass recomputes the scores.
"""

from __future__ import annotations

from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax.ad_checkpoint import checkpoint_name
from jaxtyping import Array, Float, Int

HIDDEN_SCORE = -1e30
"""Score of a key that must not be seen: finite, so that a tile without any visible key gives no NaN."""

KEPT = ("attention_out", "attention_logsumexp")
"""Names of what spares a recomputed layer its attention, for a policy of jax.checkpoint."""


def blockwise_attention(
    q_BQNH: Float[Array, "B Q N H"],
    k_BTKH: Float[Array, "B T K H"],
    v_BTKH: Float[Array, "B T K H"],
    query_segments_BQ: Int[Array, "B Q"],
    key_segments_BT: Int[Array, "B T"],
    starts: Int[Array, "blocks"],
    window: Int[Array, ""] | None,
    *,
    scale: float | None,
    block_kv: int,
) -> Float[Array, "B Q N H"]:
    """Softmax(scale q k^T) v of queries in blocks of Q / len(starts), each block contiguous in the row of keys, where
    it begins at starts[block]. block_kv divides T, and a block's end is at most T.
    """
    # Heads lead, so that each head's tile is one contiguous matrix.
    batch, num_queries, num_heads, head_dim = q_BQNH.shape
    num_kv = k_BTKH.shape[2]
    factor: float = head_dim**-0.5 if scale is None else scale
    q_BQKGH = (q_BQNH * factor).reshape(batch, num_queries, num_kv, num_heads // num_kv, head_dim)
    q_BKGQH = jnp.transpose(q_BQKGH, (0, 2, 3, 1, 4))
    k_BKTH, v_BKTH = k_BTKH.swapaxes(1, 2), v_BTKH.swapaxes(1, 2)
    segments = query_segments_BQ, key_segments_BT
    out_BKGQH: Array = jnp.asarray(_blockwise(q_BKGQH, k_BKTH, v_BKTH, segments, starts, window, block_kv))
    return jnp.transpose(out_BKGQH, (0, 3, 1, 2, 4)).reshape(q_BQNH.shape)


@partial(jax.custom_vjp, nondiff_argnums=(6,))
def _blockwise(
    q_BKGQH: Array,
    k_BKTH: Array,
    v_BKTH: Array,
    segments: tuple[Array, Array],
    starts: Array,
    window: Array | None,
    block_kv: int,
) -> Array:
    return _forward(q_BKGQH, k_BKTH, v_BKTH, segments, starts, window, block_kv)[0]


def _forward(q_BKGQH, k_BKTH, v_BKTH, segments, starts, window, block_kv: int):
    batch, num_kv, group, num_queries, head_dim = q_BKGQH.shape
    block_q = num_queries // starts.size
    first_key_T = _first_key(segments[1])

    def one_query_block(_, block):
        index, start = block
        q_tile = jax.lax.dynamic_slice_in_dim(q_BKGQH, index * block_q, block_q, axis=3)
        queries = _Tile(index * block_q, start, block_q)

        def one_key_block(j, carry):
            highest, total, out = carry
            key_start = j * block_kv
            k_tile = jax.lax.dynamic_slice_in_dim(k_BKTH, key_start, block_kv, axis=2)
            v_tile = jax.lax.dynamic_slice_in_dim(v_BKTH, key_start, block_kv, axis=2)
            scores = _tile_scores(q_tile, k_tile, segments, window, queries, key_start)
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
        carry = jnp.full(shape, HIDDEN_SCORE), jnp.zeros(shape), jnp.zeros((*shape, head_dim))
        first = _first_visible(first_key_T, start, window) // block_kv
        highest, total, out = jax.lax.fori_loop(first, _ceil_div(start + block_q, block_kv), one_key_block, carry)
        return None, ((out / total[..., None]).astype(q_BKGQH.dtype), highest + jnp.log(total))

    blocks = jnp.arange(starts.size), starts
    _, (out_tiles, logsumexp_tiles) = jax.lax.scan(one_query_block, None, blocks)
    out_BKGQH = checkpoint_name(jnp.moveaxis(out_tiles, 0, 3).reshape(q_BKGQH.shape), KEPT[0])
    logsumexp_BKGQ = checkpoint_name(jnp.moveaxis(logsumexp_tiles, 0, 3).reshape(q_BKGQH.shape[:-1]), KEPT[1])
    return out_BKGQH, (q_BKGQH, k_BKTH, v_BKTH, segments, starts, window, out_BKGQH, logsumexp_BKGQ)


def _backward(block_kv: int, saved: tuple[Any, ...], d_out_BKGQH: Array):
    q_BKGQH, k_BKTH, v_BKTH, segments, starts, window, out_BKGQH, logsumexp_BKGQ = saved
    block_q = q_BKGQH.shape[3] // starts.size
    delta_BKGQ = (d_out_BKGQH * out_BKGQH).sum(axis=-1, dtype=jnp.float32)
    first_key_T = _first_key(segments[1])

    def one_query_block(carry, block):
        index, start = block
        q_tile, d_out_tile, logsumexp, delta = (
            jax.lax.dynamic_slice_in_dim(x, index * block_q, block_q, axis=3)
            for x in (q_BKGQH, d_out_BKGQH, logsumexp_BKGQ, delta_BKGQ)
        )
        queries = _Tile(index * block_q, start, block_q)

        def one_key_block(j, carry):
            d_q_tile, d_k, d_v = carry
            key_start = j * block_kv
            k_tile = jax.lax.dynamic_slice_in_dim(k_BKTH, key_start, block_kv, axis=2)
            v_tile = jax.lax.dynamic_slice_in_dim(v_BKTH, key_start, block_kv, axis=2)
            scores = _tile_scores(q_tile, k_tile, segments, window, queries, key_start)
            more_q, more_k, more_v = _tile_gradients(scores, q_tile, d_out_tile, logsumexp, delta, k_tile, v_tile)
            return d_q_tile + more_q, _add_block(d_k, more_k, key_start), _add_block(d_v, more_v, key_start)

        first = _first_visible(first_key_T, start, window) // block_kv
        d_q_tile = jnp.zeros(q_tile.shape, jnp.float32)
        last = _ceil_div(start + block_q, block_kv)
        d_q_tile, *carry = jax.lax.fori_loop(first, last, one_key_block, (d_q_tile, *carry))
        return tuple(carry), d_q_tile.astype(q_BKGQH.dtype)

    zeros = jnp.zeros(k_BKTH.shape, jnp.float32), jnp.zeros(v_BKTH.shape, jnp.float32)
    (d_k, d_v), d_q_tiles = jax.lax.scan(one_query_block, zeros, (jnp.arange(starts.size), starts))
    d_q_BKGQH = jnp.moveaxis(d_q_tiles, 0, 3).reshape(q_BKGQH.shape)
    return d_q_BKGQH, d_k.astype(k_BKTH.dtype), d_v.astype(v_BKTH.dtype), None, None, None


_blockwise.defvjp(_forward, _backward)


# Tiles --------------------------------------------------------------------------------------------------------------


class _Tile(NamedTuple):
    """Queries of a block: where they lie among the queries, where in the row of keys, and how many."""

    index: Array
    start: Array
    size: int


def _tile_scores(q_tile, k_tile, segments, window, queries: _Tile, key_start) -> Float[Array, "B K G q s"]:
    """Scores in float32; keys out of reach and of other segments get HIDDEN_SCORE. q is scaled already."""
    scores = jnp.einsum("BKGqH,BKsH->BKGqs", q_tile, k_tile, preferred_element_type=jnp.float32)
    num_keys = scores.shape[-1]
    query_segments = jax.lax.dynamic_slice_in_dim(segments[0], queries.index, queries.size, axis=1)
    key_segments = jax.lax.dynamic_slice_in_dim(segments[1], key_start, num_keys, axis=1)
    reach = in_reach(queries.start + jnp.arange(queries.size), key_start + jnp.arange(num_keys), window)
    visible_Bqs = (query_segments[:, :, None] == key_segments[:, None, :]) & reach[None]
    return jnp.where(visible_Bqs[:, None, None], scores, HIDDEN_SCORE)


def _tile_gradients(scores, q_tile, d_out_tile, logsumexp, delta, k_tile, v_tile):
    """Gradients of one tile: with P = softmax, dV = P^T dO, dS = P * (dO V^T - delta), dQ = dS K, dK = dS^T Q."""
    probs = jnp.exp(scores - logsumexp[..., None])
    d_probs = jnp.einsum("BKGqH,BKsH->BKGqs", d_out_tile, v_tile, preferred_element_type=jnp.float32)
    d_scores = (probs * (d_probs - delta[..., None])).astype(q_tile.dtype)
    float32 = {"preferred_element_type": jnp.float32}
    d_v = jnp.einsum("BKGqs,BKGqH->BKsH", probs.astype(q_tile.dtype), d_out_tile, **float32)
    d_q = jnp.einsum("BKGqs,BKsH->BKGqH", d_scores, k_tile, **float32)
    d_k = jnp.einsum("BKGqs,BKGqH->BKsH", d_scores, q_tile, **float32)
    return d_q, d_k, d_v


def in_reach(query_index: Array, key_index: Array, window: Array | None) -> Array:
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


def _ceil_div(a, b: int):
    return -(-a // b)
