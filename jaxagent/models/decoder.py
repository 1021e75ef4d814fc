"""The decoder: token ids of packed rows to hidden states, and hidden states to logits.

Axes: B rows, T tokens of a row, D hidden, V vocabulary, L layers, K experts per token.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from jaxtyping import Array, Float, Int

from jaxagent.mesh.context import from_zigzag, to_zigzag
from jaxagent.mesh.sharding import keep_with_rows
from jaxagent.models.block import Block, PerLayer, Rows
from jaxagent.models.blockwise import KEPT
from jaxagent.models.config import DEFAULT_COMPUTE, ComputeConfig, DecoderConfig, Remat
from jaxagent.models.fused import is_fused_forward
from jaxagent.models.layers import INITIAL_STD, PRODUCT, Init, RMSNorm


class Backbone(nnx.Module):
    """Embedding, L blocks, final norm. Parameters of the blocks are stacked, so one block is compiled for all L."""

    def __init__(self, config: DecoderConfig, compute: ComputeConfig, *, init: Init) -> None:
        self.config, self.compute = config, compute
        self.embedding = init.normal((config.vocab_size, config.hidden_size), ("vocab", "embed"), std=INITIAL_STD)
        self.layers = Block(config, compute, init=init.per_layer(config.num_layers))
        self.norm = RMSNorm(config.hidden_size, "embed", config.rms_norm_eps, init=init, offset=config.norm_offset)

    def __call__(
        self,
        token_ids_BT: Int[Array, "B T"],
        positions_BT: Int[Array, "B T"],
        segment_ids_BT: Int[Array, "B T"],
        *,
        routing_BTLK: Int[Array, "B T L K"] | None = None,
    ) -> Float[Array, "B T D"]:
        """Hidden states after the final norm, in the compute dtype.

        positions count from 0 in every segment; a segment is a contiguous run of equal segment_ids and sees nothing
        of the others. Padding is a segment of its own, and its hidden states mean nothing. routing_BTLK replays the
        experts that were recorded as a token was sampled; -1 leaves a token to the router.
        """
        return self.run(token_ids_BT, positions_BT, segment_ids_BT, routing_BTLK=routing_BTLK)[0]

    def run(
        self,
        token_ids_BT: Int[Array, "B T"],
        positions_BT: Int[Array, "B T"],
        segment_ids_BT: Int[Array, "B T"],
        *,
        routing_BTLK: Int[Array, "B T L K"] | None = None,
        with_balance: bool = False,
    ) -> tuple[Float[Array, "B T D"], Float[Array, "B T"] | None]:
        """The same, and with `with_balance` each token's share of the routers' loss, as a mean over the layers (see
        jaxagent.models.experts.balance_of); None without experts."""
        token_ids_BT, positions_BT, segment_ids_BT = map(to_zigzag, (token_ids_BT, positions_BT, segment_ids_BT))
        routing_BTLK = None if routing_BTLK is None else to_zigzag(routing_BTLK)
        scale = jnp.asarray(self.config.embedding_scale, self.compute.dtype)
        hidden_BTD = keep_with_rows(self.embedding[...][token_ids_BT].astype(self.compute.dtype) * scale)
        rows = Rows.of(positions_BT, segment_ids_BT, self.config)
        block_def, stacked = nnx.split(self.layers)

        def one_layer(x_BTD: Array, inputs: tuple[nnx.State, PerLayer]) -> tuple[Array, Array | None]:
            params, layer = inputs
            x_BTD, balance_BT = nnx.merge(block_def, params)(x_BTD, rows, layer, with_balance=with_balance)
            return keep_with_rows(x_BTD), balance_BT

        if self.compute.remat:
            # A loop keeps its iterations apart, so common subexpressions can't undo the recomputation.
            unroll = self.compute.unroll_layers
            is_loop = unroll is not True and unroll < self.config.num_layers
            one_layer = jax.checkpoint(one_layer, prevent_cse=not is_loop, policy=_kept(self.compute.remat))
        inputs = stacked, PerLayer.of(self.config, routing_BTLK)
        hidden_BTD, balance_LBT = jax.lax.scan(one_layer, hidden_BTD, inputs, unroll=self.compute.unroll_layers)
        balance_BT = None if balance_LBT is None else from_zigzag(balance_LBT.mean(axis=0))
        return from_zigzag(self.norm(hidden_BTD)), balance_BT


class Decoder(Backbone):
    """A backbone and its language-model head; with tied embeddings the embedding is the head."""

    def __init__(self, config: DecoderConfig, compute: ComputeConfig, *, init: Init) -> None:
        super().__init__(config, compute, init=init)
        shape, axes = (config.vocab_size, config.hidden_size), ("vocab", "embed")
        self.lm_head = None if config.tie_embeddings else init.normal(shape, axes, std=INITIAL_STD)

    def head(self) -> Float[Array, "V D"]:
        """Weights of the language-model head, in the dtype of parameters."""
        return (self.embedding if self.lm_head is None else self.lm_head)[...]

    def logits(self, hidden: Float[Array, "*batch D"]) -> Float[Array, "*batch V"]:
        """Float32 logits of hidden states. Callers pass a chunk at a time: logits of a long row would fill memory."""
        head_VD = self.head().astype(self.compute.dtype)
        return jnp.einsum("...D,VD->...V", hidden, head_VD, preferred_element_type=jnp.float32)


def new_decoder(
    config: DecoderConfig, compute: ComputeConfig = DEFAULT_COMPUTE, *, seed: int, param_dtype: Any = jnp.float32
) -> Decoder:
    """A decoder with random weights: matrices and embeddings from N(0, 0.02^2), norms of 1, biases of 0."""
    return Decoder(config, compute, init=Init(np.random.default_rng(seed), param_dtype))


def abstract_decoder(
    config: DecoderConfig, compute: ComputeConfig = DEFAULT_COMPUTE, *, param_dtype: Any = jnp.float32
) -> Decoder:
    """The same module with shapes in place of weights: nothing is allocated."""
    return Decoder(config, compute, init=Init(None, param_dtype))


def _kept(remat: Remat) -> Callable[..., bool] | None:
    """What a recomputed layer keeps beside its input, as a policy of jax.checkpoint; None: nothing."""
    if remat is True:
        return None
    names = KEPT if remat == "keep_attention" else (*KEPT, PRODUCT)
    is_named = jax.checkpoint_policies.save_only_these_names(*names)

    def policy(primitive: Any, *inputs: Any, **params: Any) -> Any:
        return is_fused_forward(primitive) or is_named(primitive, *inputs, **params)

    return policy


def logical_axes(params: Any) -> Any:
    """Per parameter one name per dimension, in the structure of `params` (an nnx.State or a module).

    The names are the keys of jaxagent.mesh.sharding.LOGICAL_RULES. Leaves are tuples: map over them with
    is_leaf=lambda x: isinstance(x, tuple).
    """
    state = nnx.state(params, nnx.Param) if isinstance(params, nnx.Module) else params
    return jax.tree.map(
        lambda variable: variable.get_metadata()["logical_axes"], state, is_leaf=lambda x: isinstance(x, nnx.Variable)
    )
