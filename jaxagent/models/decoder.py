"""The decoder: token ids of packed rows to hidden states, and hidden states to logits.

Axes: B rows, T tokens of a row, D hidden, V vocabulary, L layers.
"""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from jaxtyping import Array, Float, Int

from jaxagent.models.config import DEFAULT_COMPUTE, ComputeConfig, DecoderConfig
from jaxagent.models.layers import INITIAL_STD, Block, Init, RMSNorm, rotation_of


class Backbone(nnx.Module):
    """Embedding, L blocks, final norm. Parameters of the blocks are stacked, so one block is compiled for all L.

    Without `rng` the parameters are shapes only, to be filled by a loader.
    """

    def __init__(
        self,
        config: DecoderConfig,
        compute: ComputeConfig = DEFAULT_COMPUTE,
        *,
        rng: np.random.Generator | None,
        param_dtype: Any = jnp.float32,
    ) -> None:
        self.config, self.compute = config, compute
        init = Init(rng, param_dtype)
        self.embedding = init.normal((config.vocab_size, config.hidden_size), ("vocab", "embed"), std=INITIAL_STD)
        self.layers = Block(config, compute, init=Init(rng, param_dtype, layers=config.num_layers))
        self.norm = RMSNorm(config.hidden_size, "embed", config.rms_norm_eps, init=init)

    def __call__(
        self, token_ids_BT: Int[Array, "B T"], positions_BT: Int[Array, "B T"], segment_ids_BT: Int[Array, "B T"]
    ) -> Float[Array, "B T D"]:
        """Hidden states after the final norm, in the compute dtype.

        positions count from 0 in every segment; a segment is a contiguous run of equal segment_ids and sees nothing
        of the others. Padding is a segment of its own, and its hidden states mean nothing.
        """
        hidden_BTD = self.embedding[...][token_ids_BT].astype(self.compute.dtype)
        rotation = rotation_of(positions_BT, self.config.head_dim, self.config.rope)
        block_def, stacked = nnx.split(self.layers)

        def one_layer(x_BTD: Array, params: nnx.State) -> tuple[Array, None]:
            return nnx.merge(block_def, params)(x_BTD, rotation, segment_ids_BT), None

        if self.compute.remat:
            # The scan keeps iterations apart already, so common subexpressions can't undo the recomputation.
            one_layer = jax.checkpoint(one_layer, prevent_cse=False)
        hidden_BTD, _ = jax.lax.scan(one_layer, hidden_BTD, stacked, unroll=self.compute.unroll_layers)
        return self.norm(hidden_BTD)


class Decoder(Backbone):
    """A backbone and its language-model head; with tied embeddings the embedding is the head."""

    def __init__(
        self,
        config: DecoderConfig,
        compute: ComputeConfig = DEFAULT_COMPUTE,
        *,
        rng: np.random.Generator | None,
        param_dtype: Any = jnp.float32,
    ) -> None:
        super().__init__(config, compute, rng=rng, param_dtype=param_dtype)
        head = Init(rng, param_dtype)
        shape, axes = (config.vocab_size, config.hidden_size), ("vocab", "embed")
        self.lm_head = None if config.tie_embeddings else head.normal(shape, axes, std=INITIAL_STD)

    def logits(self, hidden: Float[Array, "*batch D"]) -> Float[Array, "*batch V"]:
        """Float32 logits of hidden states. Callers pass a chunk at a time: logits of a long row would fill memory."""
        head = self.embedding if self.lm_head is None else self.lm_head
        return jnp.einsum(
            "...D,VD->...V", hidden, head[...].astype(self.compute.dtype), preferred_element_type=jnp.float32
        )


def new_decoder(
    config: DecoderConfig, compute: ComputeConfig = DEFAULT_COMPUTE, *, seed: int, param_dtype: Any = jnp.float32
) -> Decoder:
    """A decoder with random weights: N(0, 1/fan_in) matrices, embeddings of 0.02, residual branches scaled down."""
    return Decoder(config, compute, rng=np.random.default_rng(seed), param_dtype=param_dtype)


def abstract_decoder(
    config: DecoderConfig, compute: ComputeConfig = DEFAULT_COMPUTE, *, param_dtype: Any = jnp.float32
) -> Decoder:
    """The same module with shapes in place of weights: nothing is allocated."""
    return Decoder(config, compute, rng=None, param_dtype=param_dtype)


def logical_axes(params: Any) -> Any:
    """Per parameter one name per dimension, in the structure of `params` (an nnx.State or a module).

    Names: layers, vocab, embed, heads, kv_heads, head_dim, mlp, and value for the critic's head. Leaves are tuples:
    map over them with is_leaf=lambda x: isinstance(x, tuple).
    """
    state = nnx.state(params, nnx.Param) if isinstance(params, nnx.Module) else params
    return jax.tree.map(
        lambda variable: variable.get_metadata()["logical_axes"], state, is_leaf=lambda x: isinstance(x, nnx.Variable)
    )
