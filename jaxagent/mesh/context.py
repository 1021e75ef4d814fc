"""Rows split along their length over the mesh axis `context`, in zigzag order.

A causal token sees what lies before it, so the device with a row's end would work most. A row is cut into 2c chunks, c
the devices of the axis, and device d holds chunks d and 2c - 1 - d: all work alike. Here c = 3:

    natural   0 1 | 2 3 | 4 5          zigzag   0 5 | 1 4 | 2 3

Axes: B rows, T tokens of a row, S = T / c tokens of a device.
"""

from __future__ import annotations

from collections.abc import Callable

import jax
import jax.numpy as jnp
from jax.sharding import PartitionSpec
from jaxtyping import Array

from jaxagent.mesh.sharding import BATCH_AXES

AXIS = "context"
_TOKENS = PartitionSpec(BATCH_AXES, AXIS)


def num_shards() -> int:
    """Devices that share a row, on the mesh of jax.set_mesh; 1 without one."""
    mesh = jax.sharding.get_abstract_mesh()
    return 1 if mesh.empty else mesh.shape[AXIS]


def to_zigzag(x_BT: Array) -> Array:
    """[B, T, ...] in natural order -> the same tokens in zigzag order. T has to be a multiple of 2c."""
    return _exchanged(x_BT, _zigzag_of_natural)


def from_zigzag(x_BT: Array) -> Array:
    """The way back."""
    return _exchanged(x_BT, _natural_of_zigzag)


def gather_row(x_BS: Array) -> Array:
    """Inside shard_map: a device's [B, S, ...] in zigzag order -> the whole row [B, T, ...] in natural order."""
    num = jax.lax.axis_size(AXIS)
    chunks = jax.lax.all_gather(x_BS, AXIS).reshape(num, x_BS.shape[0], 2, x_BS.shape[1] // 2, *x_BS.shape[2:])
    natural = jnp.concatenate([chunks[:, :, 0], chunks[::-1, :, 1]])
    return jnp.moveaxis(natural, 0, 1).reshape(x_BS.shape[0], num * x_BS.shape[1], *x_BS.shape[2:])


def chunk_starts(tokens: int) -> tuple[Array, Array]:
    """Inside shard_map: where the two chunks of a device with S = `tokens` begin in the natural row."""
    num, device, chunk = jax.lax.axis_size(AXIS), jax.lax.axis_index(AXIS), tokens // 2
    return device * chunk, (2 * num - 1 - device) * chunk


def _exchanged(x_BT: Array, exchange: Callable[[Array], Array]) -> Array:
    if num_shards() == 1:
        return x_BT
    return jax.shard_map(exchange, in_specs=_TOKENS, out_specs=_TOKENS, check_vma=False)(x_BT)


def _zigzag_of_natural(x_BS: Array) -> Array:
    """Every device gives one even and one odd chunk away and gets one of each."""
    num = jax.lax.axis_size(AXIS)
    even, odd = jnp.split(x_BS, 2, axis=1)
    even = jax.lax.ppermute(even, AXIS, [(d, _holder(2 * d, num)) for d in range(num)])
    odd = jax.lax.ppermute(odd, AXIS, [(d, _holder(2 * d + 1, num)) for d in range(num)])
    return jnp.concatenate(_swapped_on_odd_devices(even, odd), axis=1)


def _natural_of_zigzag(x_BS: Array) -> Array:
    num = jax.lax.axis_size(AXIS)
    even, odd = _swapped_on_odd_devices(*jnp.split(x_BS, 2, axis=1))
    even = jax.lax.ppermute(even, AXIS, [(_holder(2 * d, num), d) for d in range(num)])
    odd = jax.lax.ppermute(odd, AXIS, [(_holder(2 * d + 1, num), d) for d in range(num)])
    return jnp.concatenate([even, odd], axis=1)


def _holder(chunk: int, num: int) -> int:
    """The device that holds a chunk in zigzag order."""
    return min(chunk, 2 * num - 1 - chunk)


def _swapped_on_odd_devices(first: Array, second: Array) -> tuple[Array, Array]:
    """Chunks d and 2c - 1 - d, one even and one odd: the even one comes first on even devices."""
    is_odd = jax.lax.axis_index(AXIS) % 2 == 1
    return jnp.where(is_odd, second, first), jnp.where(is_odd, first, second)
