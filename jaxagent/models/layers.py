"""Layers that the decoder families share; the decoder stacks their parameters along a leading layer axis.

Axes: B rows, T tokens of a row, D hidden, N query heads, K key/value heads, H head_dim, F MLP width, L layers.
Every parameter carries `logical_axes`, one name per dimension, from which the learner derives its sharding.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from jaxtyping import Array, Float, Int

from jaxagent.models.attention import attend
from jaxagent.models.config import ComputeConfig, DecoderConfig, RopeConfig

INITIAL_STD = 0.02
"""Of every matrix, as in the families' own releases. A 4 x 256 decoder learns to copy within 250 steps from it, and did
not within 375 from 1 / sqrt(fan in)."""


class Init:
    """Makes initial parameters: one generator, one dtype, and the leading layer axis of stacked parameters.

    Draws are made on the host, so a seed gives the same weights on every device, mesh and version, and nothing has to
    be compiled. Without a generator, parameters are shapes only.
    """

    def __init__(self, rng: np.random.Generator | None, dtype: Any, *, layers: int | None = None) -> None:
        self._rng, self._dtype, self._layers = rng, jnp.dtype(dtype), layers

    def normal(self, shape: tuple[int, ...], axes: tuple[str, ...], *, std: float) -> nnx.Param:
        """A parameter drawn from N(0, std^2)."""
        return self._param(shape, axes, lambda rng, full: std * rng.standard_normal(full, np.float32))

    def constant(self, shape: tuple[int, ...], axes: tuple[str, ...], value: float) -> nnx.Param:
        """A parameter that starts at one value."""
        return self._param(shape, axes, lambda _, full: np.full(full, value, np.float32))

    def _param(
        self,
        shape: tuple[int, ...],
        axes: tuple[str, ...],
        draw: Callable[[np.random.Generator, tuple[int, ...]], np.ndarray],
    ) -> nnx.Param:
        if len(shape) != len(axes):
            raise ValueError(f"shape {shape} and logical axes {axes} differ in length")
        if self._layers is not None:
            shape, axes = (self._layers, *shape), ("layers", *axes)
        if self._rng is None:
            return nnx.Param(jax.ShapeDtypeStruct(shape, self._dtype), logical_axes=axes)
        return nnx.Param(jnp.array(draw(self._rng, shape).astype(self._dtype)), logical_axes=axes)


class Linear(nnx.Module):
    """y = x W + b over the last len(inputs) axes of x; e.g. D -> (N, H), or (N, H) -> D."""

    def __init__(
        self,
        inputs: dict[str, int],
        outputs: dict[str, int],
        *,
        init: Init,
        bias: bool = False,
        compute: ComputeConfig,
    ) -> None:
        self._num_inputs = len(inputs)
        self._dtype = jnp.dtype(compute.dtype)
        shape, axes = (*inputs.values(), *outputs.values()), (*inputs, *outputs)
        self.kernel = init.normal(shape, axes, std=INITIAL_STD)
        self.bias = init.constant(tuple(outputs.values()), tuple(outputs), 0.0) if bias else None

    def __call__(self, x: Array) -> Array:
        y = jnp.tensordot(x, self.kernel[...].astype(self._dtype), axes=self._num_inputs)
        if self.bias is None:
            return y
        bias = self.bias[...].astype(self._dtype)
        return y + bias.reshape((1,) * (y.ndim - bias.ndim) + bias.shape)


class RMSNorm(nnx.Module):
    """x / sqrt(mean(x^2) + eps) * scale over the last axis, computed in float32."""

    def __init__(self, size: int, axis: str, eps: float, *, init: Init) -> None:
        self._eps = eps
        self.scale = init.constant((size,), (axis,), 1.0)

    def __call__(self, x: Array) -> Array:
        x32 = x.astype(jnp.float32)
        normed = x32 * jax.lax.rsqrt(jnp.mean(jnp.square(x32), axis=-1, keepdims=True) + self._eps)
        return normed.astype(x.dtype) * self.scale[...].astype(x.dtype).reshape((1,) * (x.ndim - 1) + (-1,))


class Attention(nnx.Module):
    """Grouped-query attention with rotary embedding; with qk_norm, queries and keys are normalised per head first."""

    def __init__(self, config: DecoderConfig, compute: ComputeConfig, *, init: Init) -> None:
        self._compute = compute
        hidden, head_dim = {"embed": config.hidden_size}, {"head_dim": config.head_dim}
        heads, kv_heads = {"heads": config.num_heads} | head_dim, {"kv_heads": config.num_kv_heads} | head_dim
        self.q = Linear(hidden, heads, init=init, bias=config.qkv_bias, compute=compute)
        self.k = Linear(hidden, kv_heads, init=init, bias=config.qkv_bias, compute=compute)
        self.v = Linear(hidden, kv_heads, init=init, bias=config.qkv_bias, compute=compute)
        self.o = Linear(heads, hidden, init=init, bias=config.output_bias, compute=compute)

        def head_norm() -> RMSNorm | None:
            return RMSNorm(config.head_dim, "head_dim", config.rms_norm_eps, init=init) if config.qk_norm else None

        self.q_norm, self.k_norm = head_norm(), head_norm()

    def __call__(self, x_BTD: Array, rotation: Rotation, segment_ids_BT: Array) -> Array:
        q_BTNH, k_BTKH, v_BTKH = self.q(x_BTD), self.k(x_BTD), self.v(x_BTD)
        if self.q_norm is not None and self.k_norm is not None:
            q_BTNH, k_BTKH = self.q_norm(q_BTNH), self.k_norm(k_BTKH)
        q_BTNH, k_BTKH = rotate(q_BTNH, rotation), rotate(k_BTKH, rotation)
        return self.o(attend(q_BTNH, k_BTKH, v_BTKH, segment_ids_BT, self._compute))


class MLP(nnx.Module):
    """SwiGLU: down(silu(gate(x)) * up(x))."""

    def __init__(self, config: DecoderConfig, compute: ComputeConfig, *, init: Init) -> None:
        hidden, width = {"embed": config.hidden_size}, {"mlp": config.intermediate_size}
        self.gate = Linear(hidden, width, init=init, bias=config.mlp_bias, compute=compute)
        self.up = Linear(hidden, width, init=init, bias=config.mlp_bias, compute=compute)
        self.down = Linear(width, hidden, init=init, bias=config.mlp_bias, compute=compute)

    def __call__(self, x_BTD: Array) -> Array:
        return self.down(jax.nn.silu(self.gate(x_BTD)) * self.up(x_BTD))


class Block(nnx.Module):
    """x + attention(norm(x)), then x + mlp(norm(x))."""

    def __init__(self, config: DecoderConfig, compute: ComputeConfig, *, init: Init) -> None:
        self.attention_norm = RMSNorm(config.hidden_size, "embed", config.rms_norm_eps, init=init)
        self.attention = Attention(config, compute, init=init)
        self.mlp_norm = RMSNorm(config.hidden_size, "embed", config.rms_norm_eps, init=init)
        self.mlp = MLP(config, compute, init=init)

    def __call__(self, x_BTD: Array, rotation: Rotation, segment_ids_BT: Array) -> Array:
        x_BTD = x_BTD + self.attention(self.attention_norm(x_BTD), rotation, segment_ids_BT)
        return x_BTD + self.mlp(self.mlp_norm(x_BTD))


Rotation = tuple[Float[Array, "B T half"], Float[Array, "B T half"]]
"""Cosine and sine of every position's angles, float32."""


def rotation_of(positions_BT: Int[Array, "B T"], head_dim: int, rope: RopeConfig) -> Rotation:
    """Angles of positions; float32 throughout, since bfloat16 can't tell positions apart beyond 256."""
    angles = positions_BT[..., None].astype(jnp.float32) * rotary_frequencies(head_dim, rope)[None, None]
    return jnp.cos(angles), jnp.sin(angles)


def rotary_frequencies(head_dim: int, rope: RopeConfig) -> np.ndarray:
    """Radians per position of each of the head_dim / 2 pairs.

    default: theta^(-2i / head_dim). linear: divided by factor. llama3 (Llama 3.1): waves longer than
    original_max_positions / low_freq_factor are divided by factor, those shorter than original_max_positions /
    high_freq_factor stay, and between the two the change is blended linearly in the frequency.
    """
    frequencies = np.float32(1.0) / np.float32(rope.theta) ** (np.arange(0, head_dim, 2, dtype=np.float32) / head_dim)
    if rope.kind == "linear":
        frequencies = frequencies / rope.factor
    if rope.kind == "llama3":
        turns = rope.original_max_positions * frequencies / (2 * np.pi)
        kept = np.clip((turns - rope.low_freq_factor) / (rope.high_freq_factor - rope.low_freq_factor), 0.0, 1.0)
        frequencies = kept * frequencies + (1.0 - kept) * frequencies / rope.factor
    return frequencies.astype(np.float32)


def rotate(x_BTNH: Array, rotation: Rotation) -> Array:
    """Turn the pairs (i, i + H/2) of each head, in float32."""
    cos, sin = (part[:, :, None, :] for part in rotation)
    first, second = jnp.split(x_BTNH.astype(jnp.float32), 2, axis=-1)
    return jnp.concatenate([first * cos - second * sin, second * cos + first * sin], axis=-1).astype(x_BTNH.dtype)
