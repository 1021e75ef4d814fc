"""Log-probs and entropy of the tokens of a row, without the logits of all positions ever existing at once.

Axes: B rows, T positions, C positions of a chunk, N chunks, V vocabulary, D hidden. Where the mesh splits rows along
their length, a chunk holds as many positions of each part.
"""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from jaxagent.mesh.context import num_shards
from jaxagent.mesh.sharding import num_token_shards
from jaxagent.models.chunks import largest_divisor


def token_logprobs(
    hidden_BTD: Float[Array, "B T D"],
    token_ids: Int[Array, "B T"],
    head_VD: Float[Array, "V D"],
    *,
    temperature: Float[Array, ""] | float,
    chunk_tokens: int,
) -> tuple[Float[Array, "B T"], Float[Array, "B T"]]:
    """(logprobs, entropy) at each token's own position: of token t and of the distribution that it was drawn from.

    Both come from softmax(head . hidden[t - 1] / temperature), in float32 from products in the dtype of `hidden`;
    position 0 has no past and gets 0. At most about chunk_tokens x V logits are alive on a device; where there are more
    the backward pass computes them again.
    """
    num_rows, length, _ = hidden_BTD.shape
    parts = num_shards()
    in_all = chunk_tokens * num_token_shards()
    chunk = largest_divisor(length // parts, at_most=max(1, in_all // (num_rows * parts)))
    hidden_NBCD = _to_chunks(hidden_BTD, chunk, parts)
    next_ids_NBC = _to_chunks(jnp.roll(token_ids, -1, axis=1), chunk, parts)
    scored: tuple[Array, Array] = _scores(hidden_NBCD, next_ids_NBC, head_VD, jnp.asarray(temperature, jnp.float32))
    logprobs_BT, entropy_BT = (shift_right(_from_chunks(array_NBC, parts)) for array_NBC in scored)
    return logprobs_BT, entropy_BT


def shift_right(next_BT: Float[Array, "B T"]) -> Float[Array, "B T"]:
    """What was computed from position t - 1 moves to position t; position 0 becomes 0."""
    return jnp.pad(next_BT[:, :-1], ((0, 0), (1, 0)))


# The gradient is written out. Derived by JAX, it would multiply float32 logit gradients with float32 heads, at half the
# rate, scatter into an array of all logits, and read the logits several times more than these do. ------------------


@jax.custom_vjp
def _scores(
    hidden_NBCD: Array, ids_NBC: Array, head_VD: Array, temperature: Array
) -> tuple[Float[Array, "N B C"], Float[Array, "N B C"]]:
    """(logprob of the id, entropy) at every position."""
    return _forward(hidden_NBCD, ids_NBC, head_VD, temperature)[0]


def _forward(hidden_NBCD: Array, ids_NBC: Array, head_VD: Array, temperature: Array):
    cast_VD, sharpness = head_VD.astype(hidden_NBCD.dtype), 1.0 / temperature

    def one_chunk(hidden_BCD: Array, ids_BC: Array):
        logits_BCV = _logits(hidden_BCD, cast_VD)
        highest_BC = logits_BCV.max(axis=-1)
        exp_BCV = jnp.exp((logits_BCV - highest_BC[..., None]) * sharpness)
        total_BC, weighted_BC = exp_BCV.sum(axis=-1), (exp_BCV * logits_BCV).sum(axis=-1)
        log_z_BC, mean_BC = sharpness * highest_BC + jnp.log(total_BC), sharpness * weighted_BC / total_BC
        picked_BC = sharpness * jnp.take_along_axis(logits_BCV, ids_BC[..., None], axis=-1)[..., 0]
        return (picked_BC - log_z_BC, log_z_BC, mean_BC), logits_BCV

    kept_BCV = None
    if hidden_NBCD.shape[0] == 1:  # all that there are may be alive, so none is computed again
        found, kept_BCV = one_chunk(hidden_NBCD[0], ids_NBC[0])
        logprobs_NBC, log_z_NBC, mean_NBC = (array_BC[None] for array_BC in found)
    else:
        _, (logprobs_NBC, log_z_NBC, mean_NBC) = jax.lax.scan(
            lambda _, chunk: (None, one_chunk(*chunk)[0]), None, (hidden_NBCD, ids_NBC)
        )
    saved = hidden_NBCD, ids_NBC, head_VD, temperature, log_z_NBC, mean_NBC, kept_BCV
    return (logprobs_NBC, log_z_NBC - mean_NBC), saved


def _backward(saved: tuple[Any, ...], given: tuple[Array, Array]):
    """With p the softmax of l = logits / temperature, and the logprob that of token k:

    d logprob / d l_v = [v = k] - p_v        d entropy / d l_v = -p_v (l_v - sum_u p_u l_u)
    """
    hidden_NBCD, ids_NBC, head_VD, temperature, log_z_NBC, mean_NBC, kept_BCV = saved
    cast_VD, sharpness = head_VD.astype(hidden_NBCD.dtype), 1.0 / temperature

    def one_chunk(d_head_VD: Array, chunk: tuple[Array, ...]):
        hidden_BCD, ids_BC, log_z_BC, mean_BC, d_logprob_BC, d_entropy_BC = chunk
        logits_BCV = _logits(hidden_BCD, cast_VD) if kept_BCV is None else kept_BCV
        probs_BCV = jnp.exp(sharpness * logits_BCV - log_z_BC[..., None])
        is_picked_BCV = ids_BC[..., None] == jax.lax.broadcasted_iota(ids_BC.dtype, logits_BCV.shape, 2)
        d_logits_BCV = jnp.where(is_picked_BCV, d_logprob_BC[..., None], 0.0)
        d_logits_BCV -= probs_BCV * (
            d_logprob_BC[..., None] + d_entropy_BC[..., None] * (sharpness * logits_BCV - mean_BC[..., None])
        )
        d_logits_BCV = (sharpness * d_logits_BCV).astype(hidden_BCD.dtype)
        d_hidden_BCD = jnp.einsum("BCV,VD->BCD", d_logits_BCV, cast_VD)
        more_VD = jnp.einsum("BCV,BCD->VD", d_logits_BCV, hidden_BCD, preferred_element_type=jnp.float32)
        return d_head_VD + more_VD, d_hidden_BCD

    chunks = hidden_NBCD, ids_NBC, log_z_NBC, mean_NBC, *given
    d_head_VD = jnp.zeros(head_VD.shape, jnp.float32)
    if kept_BCV is None:
        d_head_VD, d_hidden_NBCD = jax.lax.scan(one_chunk, d_head_VD, chunks)
    else:
        d_head_VD, d_hidden_BCD = one_chunk(d_head_VD, tuple(array[0] for array in chunks))
        d_hidden_NBCD = d_hidden_BCD[None]
    return d_hidden_NBCD, None, d_head_VD.astype(head_VD.dtype), jnp.zeros_like(temperature)


_scores.defvjp(_forward, _backward)


def _logits(hidden_BCD: Array, head_VD: Array) -> Float[Array, "B C V"]:
    """Before the temperature. XLA must not multiply by it here: logits would be stored a second time."""
    logits_BCV = jnp.einsum("BCD,VD->BCV", hidden_BCD, head_VD, preferred_element_type=jnp.float32)
    return jax.lax.optimization_barrier(logits_BCV)


def _to_chunks(array: Array, chunk: int, parts: int) -> Array:
    """[B, T, ...] -> [N, B, C, ...]. Rows stay whole on axis B and their parts in order on C, which are sharded."""
    num_rows, length = array.shape[:2]
    apart = array.reshape(num_rows, parts, length // (parts * chunk), chunk, *array.shape[2:])
    return jnp.moveaxis(apart, 2, 0).reshape(-1, num_rows, parts * chunk, *array.shape[2:])


def _from_chunks(array_NBC: Float[Array, "N B C"], parts: int) -> Float[Array, "B T"]:
    num_chunks, num_rows, size = array_NBC.shape
    apart = array_NBC.reshape(num_chunks, num_rows, parts, size // parts)
    return jnp.moveaxis(apart, 0, 2).reshape(num_rows, num_chunks * size)
