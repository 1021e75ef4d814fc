"""Grouped expert computation: every token's experts, and nothing else, whatever the balance between them.

Axes: N tokens, K experts per token, E experts, D hidden, F width of an expert, S slots.

    (token, expert) pairs ──sort by expert──► slots, each expert's rounded up to whole blocks of R rows
    slots, a block at a time, each with the weights of its one expert ──► slots ──weigh and sum──► tokens

Time and memory follow the N x K pairs, plus at most R - 1 empty rows an expert; pairs whose expert is held elsewhere
take no block. jax.lax.ragged_dot has the same meaning, but JAX lowers it to E dense products on a CPU (and on a GPU
unless a flag is set), with E copies of the slots in memory.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int

Activation = Callable[[Array], Array]


class ExpertWeights(NamedTuple):
    """down(activation(gate(x)) * up(x)) for each expert, without biases."""

    gate: Float[Array, "E D F"]
    up: Float[Array, "E D F"]
    down: Float[Array, "E F D"]


class Slots(NamedTuple):
    """Where each pair computes. An empty slot has pair N x K, and a pair of an expert held elsewhere slot S."""

    pair_of_slot: Int[Array, "S"]
    slot_of_pair: Int[Array, "N K"]
    expert_of_block: Int[Array, "S/R"]
    num_blocks: Int[Array, ""]
    """Blocks in use; those behind them hold nothing."""


def expert_mixture(
    x_ND: Float[Array, "N D"],
    expert_ids_NK: Int[Array, "N K"],
    weights_NK: Float[Array, "N K"],
    experts: ExpertWeights,
    *,
    activation: Activation,
    block_rows: int,
) -> Float[Array, "N D"]:
    """sum_k weights[n, k] * expert[expert_ids[n, k]](x[n]), in the dtype of x; the sum over k in float32.

    Ids outside 0 … E-1 stand for experts held elsewhere and add nothing. Gradients flow to x, weights and experts.
    """
    slots = assign_slots(expert_ids_NK, num_experts=experts.gate.shape[0], block_rows=block_rows)
    y_SD = _blocks(_to_slots(x_ND, slots), experts, slots, activation, block_rows)
    y_NKD = _from_slots(y_SD, slots)
    return jnp.einsum("NKD,NK->ND", y_NKD, weights_NK, preferred_element_type=jnp.float32).astype(x_ND.dtype)


def assign_slots(expert_ids_NK: Int[Array, "N K"], *, num_experts: int, block_rows: int) -> Slots:
    """Pairs in order of their experts, and of their tokens within one; each expert begins a new block."""
    num_pairs = expert_ids_NK.size
    num_blocks = num_pairs // block_rows + min(num_experts, num_pairs)
    held = (expert_ids_NK >= 0) & (expert_ids_NK < num_experts)
    expert_P = jnp.where(held, expert_ids_NK, num_experts).reshape(-1)
    order_P = jnp.argsort(expert_P, stable=True)
    sorted_P = expert_P[order_P]
    counts_E = jnp.zeros(num_experts + 1, jnp.int32).at[expert_P].add(1)
    blocks_E = -(-counts_E[:num_experts] // block_rows)
    ends_E = jnp.cumsum(blocks_E)
    first_slot_E = jnp.append((ends_E - blocks_E) * block_rows, 0)
    first_pair_E = jnp.cumsum(counts_E) - counts_E
    slot_P = first_slot_E[sorted_P] + jnp.arange(num_pairs) - first_pair_E[sorted_P]
    slot_P = jnp.where(sorted_P < num_experts, slot_P, num_blocks * block_rows)
    return Slots(
        pair_of_slot=jnp.full(num_blocks * block_rows, num_pairs).at[slot_P].set(order_P, mode="drop"),
        slot_of_pair=jnp.zeros(num_pairs, jnp.int32).at[order_P].set(slot_P).reshape(expert_ids_NK.shape),
        expert_of_block=jnp.minimum(
            jnp.searchsorted(ends_E, jnp.arange(num_blocks), side="right"), num_experts - 1
        ).astype(jnp.int32),
        num_blocks=ends_E[-1],
    )


# To the slots and back: gathers in both directions, also of gradients, so that no two threads add to one place and a
# repeated step gives the same bits. --------------------------------------------------------------------------------


@jax.custom_vjp
def _to_slots(x_ND: Array, slots: Slots) -> Float[Array, "S D"]:
    token_S = slots.pair_of_slot // slots.slot_of_pair.shape[1]
    return x_ND.at[token_S].get(mode="fill", fill_value=0)


def _to_slots_backward(slots: Slots, d_x_SD: Array) -> tuple[Array, Any]:
    d_x_NKD = _from_slots(d_x_SD, slots)
    return d_x_NKD.sum(axis=1, dtype=jnp.float32).astype(d_x_SD.dtype), _no_gradient(slots)


_to_slots.defvjp(lambda x_ND, slots: (_to_slots(x_ND, slots), slots), _to_slots_backward)


@jax.custom_vjp
def _from_slots(y_SD: Array, slots: Slots) -> Float[Array, "N K D"]:
    return y_SD.at[slots.slot_of_pair].get(mode="fill", fill_value=0)


def _from_slots_backward(slots: Slots, d_y_NKD: Array) -> tuple[Array, Any]:
    d_y_PD = d_y_NKD.reshape(-1, d_y_NKD.shape[-1])
    return d_y_PD.at[slots.pair_of_slot].get(mode="fill", fill_value=0), _no_gradient(slots)


_from_slots.defvjp(lambda y_SD, slots: (_from_slots(y_SD, slots), slots), _from_slots_backward)


# The blocks ---------------------------------------------------------------------------------------------------------


@partial(jax.custom_vjp, nondiff_argnums=(3, 4))
def _blocks(
    x_SD: Array, experts: ExpertWeights, slots: Slots, activation: Activation, block_rows: int
) -> Float[Array, "S D"]:
    def one_block(index: Array, y_SD: Array) -> Array:
        weights = _weights_of(experts, slots.expert_of_block[index])
        y_RD = _expert(_rows(x_SD, index, block_rows), weights, activation)
        return jax.lax.dynamic_update_slice_in_dim(y_SD, y_RD, index * block_rows, axis=0)

    return jax.lax.fori_loop(0, slots.num_blocks, one_block, jnp.zeros_like(x_SD))


def _blocks_forward(x_SD: Array, experts: ExpertWeights, slots: Slots, activation: Activation, block_rows: int):
    return _blocks(x_SD, experts, slots, activation, block_rows), (x_SD, experts, slots)


def _blocks_backward(activation: Activation, block_rows: int, saved: tuple[Any, ...], d_y_SD: Array):
    """Each block is computed again; the gradients of an expert's weights add up in float32."""
    x_SD, experts, slots = saved

    def one_block(index: Array, carry: tuple[Array, ExpertWeights]) -> tuple[Array, ExpertWeights]:
        d_x_SD, totals = carry
        expert = slots.expert_of_block[index]
        _, pull = jax.vjp(
            partial(_expert, activation=activation), _rows(x_SD, index, block_rows), _weights_of(experts, expert)
        )
        d_x_RD, d_weights = pull(_rows(d_y_SD, index, block_rows))
        d_x_SD = jax.lax.dynamic_update_slice_in_dim(d_x_SD, d_x_RD, index * block_rows, axis=0)
        return d_x_SD, jax.tree.map(lambda total, more: total.at[expert].add(more), totals, d_weights)

    zeros = jax.tree.map(lambda weight: jnp.zeros(weight.shape, jnp.float32), experts)
    d_x_SD, totals = jax.lax.fori_loop(0, slots.num_blocks, one_block, (jnp.zeros_like(x_SD), zeros))
    d_experts = jax.tree.map(lambda total, weight: total.astype(weight.dtype), totals, experts)
    return d_x_SD, d_experts, _no_gradient(slots)


_blocks.defvjp(_blocks_forward, _blocks_backward)


def _expert(x_RD: Array, weights: ExpertWeights, activation: Activation) -> Float[Array, "R D"]:
    return (activation(x_RD @ weights.gate) * (x_RD @ weights.up)) @ weights.down


def _rows(x_SD: Array, block: Array, block_rows: int) -> Float[Array, "R D"]:
    return jax.lax.dynamic_slice_in_dim(x_SD, block * block_rows, block_rows, axis=0)


def _weights_of(experts: ExpertWeights, expert: Array) -> ExpertWeights:
    return jax.tree.map(lambda weight: jax.lax.dynamic_index_in_dim(weight, expert, keepdims=False), experts)


def _no_gradient(slots: Slots) -> Any:
    return jax.tree.map(lambda array: np.zeros(array.shape, jax.dtypes.float0), slots)
