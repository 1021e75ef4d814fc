"""The critic: a backbone of its own and a linear value head.

Axes: B rows, T tokens of a row, D hidden.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from jaxtyping import Array, Float, Int

from jaxagent.models.decoder import Backbone, Decoder
from jaxagent.models.layers import Init


class Critic(nnx.Module):
    """values = hidden . w + b. The head starts at zero, so an untrained critic says 0 everywhere."""

    def __init__(self, backbone: Backbone) -> None:
        self.backbone = backbone
        init = Init(np.random.default_rng(0), backbone.embedding.dtype)
        self.value_kernel = init.constant((backbone.config.hidden_size,), ("embed",), 0.0)
        self.value_bias = init.constant((1,), ("value",), 0.0)

    @classmethod
    def from_decoder(cls, decoder: Decoder) -> Critic:
        """A critic whose backbone starts as a copy of the decoder's: own arrays, and no language-model head."""
        backbone = Backbone(decoder.config, decoder.compute, rng=None, param_dtype=decoder.embedding.dtype)
        weights = {name: nnx.state(getattr(decoder, name)) for name in ("layers", "norm")}
        nnx.update(backbone, jax.tree.map(jnp.copy, nnx.State({**weights, "embedding": decoder.embedding})))
        return cls(backbone)

    def __call__(
        self, token_ids_BT: Int[Array, "B T"], positions_BT: Int[Array, "B T"], segment_ids_BT: Int[Array, "B T"]
    ) -> Float[Array, "B T"]:
        """Float32 values of packed rows; see Backbone for positions and segments."""
        return self.values(self.backbone(token_ids_BT, positions_BT, segment_ids_BT))

    def values(self, hidden: Float[Array, "*batch D"]) -> Float[Array, "*batch"]:
        """Float32 values of hidden states."""
        kernel_D, bias = self.value_kernel[...].astype(jnp.float32), self.value_bias[0].astype(jnp.float32)
        return jnp.einsum("...D,D->...", hidden.astype(jnp.float32), kernel_D) + bias
