"""The critic: a backbone of its own and a linear value head.

Axes: B rows, T tokens of a row, D hidden.
"""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from jaxtyping import Array, Float, Int

from jaxagent.models.decoder import Backbone, Decoder
from jaxagent.models.layers import Init
from jaxagent.models.lora import trainable


class Critic(nnx.Module):
    """values = hidden . w + b. The head starts at zero, so an untrained critic says 0 everywhere."""

    def __init__(self, backbone: Backbone) -> None:
        self.backbone = backbone
        init = Init(np.random.default_rng(0), jnp.float32)  # trained also where the backbone is frozen in bfloat16
        self.value_kernel = init.constant((backbone.config.hidden_size,), ("embed",), 0.0)
        self.value_bias = init.constant((1,), ("value",), 0.0)

    @classmethod
    def from_decoder(cls, decoder: Decoder) -> Critic:
        """A critic whose backbone starts as a copy of the decoder's: own arrays, and no language-model head.

        What is frozen, the base under adapters, is shared.
        """
        init = Init(None, decoder.embedding.dtype)
        backbone = Backbone(decoder.config, decoder.compute, init=init)
        for name in ("embedding", "layers", "norm"):
            setattr(backbone, name, _own(getattr(decoder, name)))
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


def _own(node: Any) -> Any:
    """A copy of a module or parameter, with arrays of its own where they are trained."""
    graphdef, trained, rest = nnx.split(node, trainable, ...)
    return nnx.merge(graphdef, _copied(trained), rest)


@jax.jit
def _copied(tree: Any) -> Any:
    """Jitted, since parts of the arrays may lie on devices of other processes."""
    return jax.tree.map(jnp.copy, tree)
