"""Low-rank adapters (LoRA, arXiv 2106.09685): y = x W + (alpha / rank) (x A) B, with W frozen.

Axes: L layers, r rank.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from jaxtyping import Array

from jaxagent.config.learner import LoraConfig
from jaxagent.models.config import ComputeConfig, UnsupportedModelError
from jaxagent.models.decoder import Backbone, Decoder
from jaxagent.models.layers import Linear
from jaxagent.models.stored import ATTENTION_MATRICES, MLP_MATRICES

FROZEN = "frozen"
"""Metadata of a parameter that is not trained: it has no gradient, no optimizer state and no place in checkpoints."""


class Adapter(nnx.Module):
    """The low-rank term of one Linear, of all layers. Both factors are float32, also beside a bfloat16 base."""

    def __init__(
        self, linear: Linear, compute: ComputeConfig, *, rank: int, alpha: float, layers: int, rng: np.random.Generator
    ) -> None:
        self._dtype, self.scale, self._num_inputs = jnp.dtype(compute.dtype), alpha / rank, len(linear.inputs)
        inputs, outputs = dict(linear.inputs), dict(linear.outputs)
        bound = float(np.prod(list(inputs.values()))) ** -0.5
        a = rng.uniform(-bound, bound, (layers, *inputs.values(), rank)).astype(np.float32)
        b = np.zeros((layers, rank, *outputs.values()), np.float32)
        self.a = nnx.Param(jnp.asarray(a), logical_axes=("layers", *inputs, "rank"))
        self.b = nnx.Param(jnp.asarray(b), logical_axes=("layers", "rank", *outputs))

    def __call__(self, x: Array) -> Array:
        low = jnp.tensordot(x, self.a[...].astype(self._dtype), axes=self._num_inputs)
        return jnp.tensordot(low, self.b[...].astype(self._dtype), axes=1) * jnp.asarray(self.scale, self._dtype)


def add_adapters(decoder: Decoder, cfg: LoraConfig, *, seed: int = 0) -> Decoder:
    """Freezes the decoder and puts an adapter beside every matrix that cfg.targets names; changes it in place.

    The adapters add nothing at first: A is uniform in +-1 / sqrt(inputs), B is zero. Raises UnsupportedModelError where
    the model has no such matrix.
    """
    linears = _linears(decoder)
    for target in cfg.targets:
        if target not in linears:
            raise UnsupportedModelError(
                f"learner.lora.targets: this {decoder.config.family} model has no matrix {target!r} for an adapter; "
                f"it has {', '.join(linears)}"
            )
    for parameter in jax.tree.leaves(nnx.state(decoder, nnx.Param), is_leaf=_is_variable):
        parameter.set_metadata(FROZEN, True)
    rng = np.random.default_rng(seed)
    for target in cfg.targets:
        linear = linears[target]
        linear.adapter = Adapter(
            linear, decoder.compute, rank=cfg.rank, alpha=cfg.alpha, layers=decoder.config.num_layers, rng=rng
        )
    return decoder


def trainable(path: Any, value: Any) -> bool:
    """A filter of nnx.split and nnx.state: parameters that are trained."""
    del path
    return isinstance(value, nnx.Param) and not value.get_metadata().get(FROZEN, False)


def adapters_of(backbone: Backbone) -> dict[str, tuple[Linear, Adapter]]:
    """The adapted matrices by their stored names, such as q_proj."""
    return {name: (linear, linear.adapter) for name, linear in _linears(backbone).items() if linear.adapter is not None}


def merged_kernels(backbone: Backbone) -> dict[tuple[str, ...], Callable[[int], Array]]:
    """For each adapted kernel by its path: layer -> W + (alpha / rank) A B, added in float32 and in W's dtype."""

    def of(linear: Linear, adapter: Adapter) -> Callable[[int], Array]:
        return lambda layer: _merge(
            linear.kernel[...][layer], adapter.a[...][layer], adapter.b[...][layer], adapter.scale
        )

    places = {**ATTENTION_MATRICES, **MLP_MATRICES}
    return {("layers", *places[name], "kernel"): of(*pair) for name, pair in adapters_of(backbone).items()}


@jax.jit
def _merge(kernel: Array, a: Array, b: Array, scale: float) -> Array:
    product = jnp.tensordot(a, b, axes=1, precision=jax.lax.Precision.HIGHEST)
    return (kernel.astype(jnp.float32) + scale * product).astype(kernel.dtype)


def _linears(backbone: Backbone) -> dict[str, Linear]:
    """The matrices that can have adapters: of attention, and of an MLP, but not of experts."""
    places = {**ATTENTION_MATRICES, **MLP_MATRICES}
    found = {name: getattr(getattr(backbone.layers, part), matrix) for name, (part, matrix) in places.items()}
    return {name: linear for name, linear in found.items() if isinstance(linear, Linear)}


def _is_variable(leaf: Any) -> bool:
    return isinstance(leaf, nnx.Variable)
