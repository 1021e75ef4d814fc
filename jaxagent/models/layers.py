"""What every block is made from: initial parameters, linear maps, norms. Parameters of all layers are stacked.

Every parameter carries `logical_axes`, one name per dimension, from which the learner derives its sharding.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from jax.ad_checkpoint import checkpoint_name
from jaxtyping import Array

from jaxagent.models.config import ComputeConfig

INITIAL_STD = 0.02
"""Of every matrix, as in the families' own releases. A 4 x 256 decoder learns to copy within 250 steps from it, and did
not within 375 from 1 / sqrt(fan in)."""

PRODUCT = "matrix_product"
"""Name of every linear map's output before its bias, for a policy of jax.checkpoint."""


class Init:
    """Makes initial parameters: one generator, one dtype, and the leading layer axis of stacked parameters.

    Draws are made on the host, so a seed gives the same weights on every device, mesh and version, and nothing has to
    be compiled. Without a generator, parameters are shapes only.
    """

    def __init__(self, rng: np.random.Generator | None, dtype: Any, *, layers: int | None = None) -> None:
        self._rng, self._dtype, self._layers = rng, jnp.dtype(dtype), layers

    def per_layer(self, num_layers: int) -> Init:
        """The same for parameters of which every layer has its own."""
        return Init(self._rng, self._dtype, layers=num_layers)

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
    """y = x W + b over the last len(inputs) axes of x; e.g. D -> (N, H), or (N, H) -> D.

    With an adapter (jaxagent/models/lora.py) its low-rank term is added.
    """

    def __init__(
        self,
        inputs: dict[str, int],
        outputs: dict[str, int],
        *,
        init: Init,
        bias: bool = False,
        compute: ComputeConfig,
    ) -> None:
        self.inputs, self.outputs = tuple(inputs.items()), tuple(outputs.items())
        self._dtype = jnp.dtype(compute.dtype)
        shape, axes = (*inputs.values(), *outputs.values()), (*inputs, *outputs)
        self.kernel = init.normal(shape, axes, std=INITIAL_STD)
        self.bias = init.constant(tuple(outputs.values()), tuple(outputs), 0.0) if bias else None
        self.adapter: Any = nnx.data(None)

    def __call__(self, x: Array) -> Array:
        y = jnp.tensordot(x, self.kernel[...].astype(self._dtype), axes=len(self.inputs))
        y = checkpoint_name(y, PRODUCT)
        if self.adapter is not None:
            y = y + self.adapter(x)
        if self.bias is None:
            return y
        bias = self.bias[...].astype(self._dtype)
        return y + bias.reshape((1,) * (y.ndim - bias.ndim) + bias.shape)


class RMSNorm(nnx.Module):
    """x / sqrt(mean(x^2) + eps) * (scale + offset) over the last axis, computed in float32.

    An offset marks Gemma, which multiplies before it rounds to the dtype of x; the others round first.
    """

    def __init__(self, size: int, axis: str, eps: float, *, init: Init, offset: float = 0.0) -> None:
        self._eps, self._offset = eps, offset
        self.scale = init.constant((size,), (axis,), 1.0 - offset)

    def __call__(self, x: Array) -> Array:
        x32 = x.astype(jnp.float32)
        normed = x32 * jax.lax.rsqrt(jnp.mean(jnp.square(x32), axis=-1, keepdims=True) + self._eps)
        scale = self.scale[...].reshape((1,) * (x.ndim - 1) + (-1,))
        if self._offset:
            return (normed * (scale.astype(jnp.float32) + self._offset)).astype(x.dtype)
        return normed.astype(x.dtype) * scale.astype(x.dtype)
