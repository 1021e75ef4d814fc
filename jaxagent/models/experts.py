"""A mixture of experts in place of an MLP: each token goes to a few of many, whatever the balance between them.

Axes: B rows, T tokens of a row, N = B x T, K experts per token, E experts, D hidden, F width of an expert.

On a mesh (that of jax.set_mesh) the experts are shared out over the axis `expert`, whose devices hold rows of their own
for all other layers: here they gather their rows, each computes the part of its experts, and the sums go back.
"""

from __future__ import annotations

from functools import partial

import jax
import jax.numpy as jnp
from flax import nnx
from jax.sharding import AbstractMesh, PartitionSpec
from jaxtyping import Array, Float, Int

from jaxagent.models.chunks import largest_divisor
from jaxagent.models.config import ComputeConfig, DecoderConfig
from jaxagent.models.grouped import ExpertWeights, expert_mixture
from jaxagent.models.layers import INITIAL_STD, Init

ROW_AXES = ("data", "fsdp")
"""Mesh axes over which rows stay apart here; they are shared out over these and `expert` everywhere else."""


class Experts(nnx.Module):
    """sum_k w_k * expert_k(x) over the experts_per_token most probable experts of softmax(x W_router)."""

    def __init__(self, config: DecoderConfig, compute: ComputeConfig, *, init: Init) -> None:
        self._config, self._compute = config, compute
        experts, hidden, width = config.num_experts, config.hidden_size, config.intermediate_size
        self.router = init.normal((hidden, experts), ("embed", "router"), std=INITIAL_STD)
        self.gate = init.normal((experts, hidden, width), ("expert", "embed", "mlp"), std=INITIAL_STD)
        self.up = init.normal((experts, hidden, width), ("expert", "embed", "mlp"), std=INITIAL_STD)
        self.down = init.normal((experts, width, hidden), ("expert", "mlp", "embed"), std=INITIAL_STD)

    def __call__(
        self,
        x_BTD: Float[Array, "B T D"],
        segment_ids_BT: Int[Array, "B T"],
        *,
        routing_BTK: Int[Array, "B T K"] | None = None,
        with_balance: bool = False,
    ) -> tuple[Float[Array, "B T D"], Float[Array, "B T"] | None]:
        """The mixture, and with `with_balance` what `balance_of` says of each token.

        With routing_BTK a token goes to the experts named there (-1: to the router's own choice); how much each of
        them counts is still the router's, so the router learns. Raises ValueError where the mesh doesn't fit.
        """
        mesh = jax.sharding.get_abstract_mesh()
        call = partial(self._on_one_device, with_balance=with_balance)
        if not mesh.empty and mesh.size > 1:
            call = self._over(mesh, with_balance=with_balance)
        weights = tuple(kernel[...] for kernel in (self.gate, self.up, self.down))
        if self._compute.expert_chunk_tokens is None:
            # With chunks each casts for itself, so that their gradients add up in the parameters' dtype.
            weights = tuple(kernel.astype(x_BTD.dtype) for kernel in weights)
        return call(x_BTD, segment_ids_BT, routing_BTK, self.router[...], weights)

    def _over(self, mesh: AbstractMesh, *, with_balance: bool):
        num_experts, expert_devices = self._config.num_experts, mesh.shape["expert"]
        if num_experts % expert_devices:
            raise ValueError(
                f"learner.mesh.expert={expert_devices} must divide the model's {num_experts} experts; set it to a "
                "divisor, and use data or fsdp for the other devices"
            )
        tensor = "tensor" if self._config.intermediate_size % mesh.shape["tensor"] == 0 else None
        rows, whole = PartitionSpec(ROW_AXES, "context"), PartitionSpec()
        wide, narrow = PartitionSpec("expert", None, tensor), PartitionSpec("expert", tensor, None)
        # Each device adds its part of every token; rows go back to the devices that hold them outside.
        return jax.shard_map(
            partial(self._on_each_device, tensor=tensor, with_balance=with_balance),
            mesh=mesh,
            in_specs=(rows, rows, rows, whole, (wide, wide, narrow)),
            out_specs=(PartitionSpec((*ROW_AXES, "expert"), "context"), rows),
            check_vma=False,
        )

    def _on_each_device(self, x_BTD, segment_ids_BT, routing_BTK, router, weights, *, tensor, with_balance):
        first = jax.lax.axis_index("expert") * weights[0].shape[0]
        y_BTD, balance_BT = self._on_one_device(
            x_BTD,
            segment_ids_BT,
            routing_BTK,
            router,
            weights,
            first_expert=first,
            with_balance=with_balance,
            context="context",
        )
        if tensor is not None:
            y_BTD = jax.lax.psum(y_BTD, tensor)
        return jax.lax.psum_scatter(y_BTD, "expert", scatter_dimension=0, tiled=True), balance_BT

    def _on_one_device(
        self, x_BTD, segment_ids_BT, routing_BTK, router, weights, *, first_expert=0, with_balance=False, context=None
    ):
        config, (batch, tokens, hidden) = self._config, x_BTD.shape
        probs_BTE = router_probs(x_BTD, router)
        ids_BTK, weights_BTK = choose_experts(
            probs_BTE, config.experts_per_token, normalize=config.norm_expert_weights, routing_BTK=routing_BTK
        )
        pairs = batch * tokens, config.experts_per_token
        chunk = largest_divisor(pairs[0], at_most=self._compute.expert_chunk_tokens or pairs[0])
        y_ND = _in_chunks(
            x_BTD.reshape(-1, hidden),
            ids_BTK.reshape(pairs) - first_expert,
            weights_BTK.reshape(pairs),
            weights,
            chunk=chunk,
            block_rows=self._compute.expert_block_rows or _block_rows(chunk * pairs[1], config.num_experts),
        )
        balance_BT = balance_of(probs_BTE, ids_BTK, segment_ids_BT, context=context) if with_balance else None
        return y_ND.reshape(x_BTD.shape), balance_BT


def router_probs(x_BTD: Float[Array, "B T D"], router_DE: Float[Array, "D E"]) -> Float[Array, "B T E"]:
    """softmax(x W) in float32 whatever the compute dtype: in bfloat16 near ties would choose other experts than they
    did when the token was sampled."""
    logits = jnp.einsum(
        "BTD,DE->BTE", x_BTD.astype(jnp.float32), router_DE.astype(jnp.float32), precision=jax.lax.Precision.HIGHEST
    )
    return jax.nn.softmax(logits, axis=-1)


def choose_experts(
    probs_BTE: Float[Array, "B T E"],
    experts_per_token: int,
    *,
    normalize: bool,
    routing_BTK: Int[Array, "B T K"] | None = None,
) -> tuple[Int[Array, "B T K"], Float[Array, "B T K"]]:
    """(ids, weights) of each token's experts: the recorded ones where they are known, else the most probable."""
    ids_BTK = jax.lax.top_k(probs_BTE, experts_per_token)[1]
    if routing_BTK is not None:
        known = (routing_BTK >= 0).all(axis=-1, keepdims=True)
        ids_BTK = jnp.where(known, routing_BTK.astype(ids_BTK.dtype), ids_BTK)
    weights_BTK = jnp.take_along_axis(probs_BTE, ids_BTK, axis=-1)
    if normalize:
        weights_BTK = weights_BTK / weights_BTK.sum(axis=-1, keepdims=True)
    return ids_BTK, weights_BTK


def balance_of(
    probs_BTE: Float[Array, "B T E"],
    ids_BTK: Int[Array, "B T K"],
    segment_ids_BT: Int[Array, "B T"],
    *,
    context: str | None = None,
) -> Float[Array, "B T"]:
    """Each token's share of the load-balancing loss: E * sum_e f_e p_e, with p the router's probabilities of the token
    and f_e the share of its segment's tokens that went to expert e. K where all experts are used alike.

    The mean over a segment's tokens is the loss of Switch Transformers (arXiv 2101.03961, Eq. 4-6) for that segment
    alone, so packing, micro-batching and sharding don't change it; the original takes f over the whole batch. `context`
    names the mesh axis over which the tokens of a row lie apart, inside shard_map.
    """
    num_experts, tokens = probs_BTE.shape[-1], segment_ids_BT.shape[1]
    num_segments = 1 + tokens * (1 if context is None else jax.lax.axis_size(context))
    used_BTE = jax.nn.one_hot(ids_BTK, num_experts).sum(axis=2)
    sums = jax.vmap(partial(jax.ops.segment_sum, num_segments=num_segments))
    counts_BSE, lengths_BS = sums(used_BTE, segment_ids_BT), sums(jnp.ones(segment_ids_BT.shape), segment_ids_BT)
    if context is not None:
        counts_BSE, lengths_BS = jax.lax.psum((counts_BSE, lengths_BS), context)
    frequencies_BSE = counts_BSE / jnp.maximum(lengths_BS, 1.0)[..., None]
    shares_BTE = jnp.take_along_axis(frequencies_BSE, segment_ids_BT[..., None], axis=1)
    return num_experts * (shares_BTE * probs_BTE).sum(axis=-1)


def _in_chunks(x_ND, ids_NK, weights_NK, experts, *, chunk: int, block_rows: int) -> Float[Array, "N D"]:
    """expert_mixture of `chunk` tokens at a time; a chunk's slots are computed again in the backward pass."""

    def mixture(x_CD: Array, ids_CK: Array, weights_CK: Array) -> Array:
        cast = ExpertWeights(*(kernel.astype(x_CD.dtype) for kernel in experts))
        return expert_mixture(x_CD, ids_CK, weights_CK, cast, activation=jax.nn.silu, block_rows=block_rows)

    if chunk == x_ND.shape[0]:
        return mixture(x_ND, ids_NK, weights_NK)
    inputs = tuple(array.reshape(-1, chunk, array.shape[-1]) for array in (x_ND, ids_NK, weights_NK))
    one_chunk = jax.checkpoint(mixture, prevent_cse=False)
    return jax.lax.scan(lambda _, chunks: (None, one_chunk(*chunks)), None, inputs)[1].reshape(x_ND.shape)


def _block_rows(num_pairs: int, num_experts: int) -> int:
    mean = max(1, num_pairs // num_experts)
    return min(512, max(8, 1 << (mean.bit_length() - 1)))
