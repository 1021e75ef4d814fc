"""One layer of a decoder, of any family: attention, then an MLP or a mixture of experts.

Axes: B rows, T tokens of a row, D hidden, N query heads, K key/value heads, H head_dim, F MLP width, L layers.
"""

from __future__ import annotations

from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from jaxtyping import Array, Bool, Float, Int

from jaxagent.models.attention import attend
from jaxagent.models.config import Activation, ComputeConfig, DecoderConfig
from jaxagent.models.experts import Experts
from jaxagent.models.layers import Init, Linear, RMSNorm
from jaxagent.models.rope import Rotation, rotate, rotation_of


class Rows(NamedTuple):
    """What all layers know of the packed rows beside their hidden states."""

    segment_ids_BT: Int[Array, "B T"]
    rotation: Rotation
    sliding_rotation: Rotation | None
    """Of sliding layers, where theirs is another one."""

    @classmethod
    def of(cls, positions_BT: Int[Array, "B T"], segment_ids_BT: Int[Array, "B T"], config: DecoderConfig) -> Rows:
        def rotation(rope):
            return rotation_of(positions_BT, config.head_dim, rope)

        return cls(segment_ids_BT, rotation(config.rope), config.sliding_rope and rotation(config.sliding_rope))


class PerLayer(NamedTuple):
    """What differs from layer to layer beside the weights; with a leading axis L for all layers together."""

    slides: Bool[Array, ""] | None
    routing_BTK: Int[Array, "B T K"] | None
    """Experts that each token was sent to when it was sampled, -1 where that is not known."""

    @classmethod
    def of(cls, config: DecoderConfig, routing_BTLK: Int[Array, "B T L K"] | None) -> PerLayer:
        return cls(
            jnp.asarray(np.array(config.sliding_layers)) if any(config.sliding_layers) else None,
            None if routing_BTLK is None else jnp.moveaxis(routing_BTLK, 2, 0),
        )


class Block(nnx.Module):
    """x + attention(norm(x)), then x + mlp(norm(x)); with sandwich_norms both are normalised before they are added."""

    def __init__(self, config: DecoderConfig, compute: ComputeConfig, *, init: Init) -> None:
        def norm() -> RMSNorm:
            return RMSNorm(config.hidden_size, "embed", config.rms_norm_eps, init=init, offset=config.norm_offset)

        self.attention_norm = norm()
        self.attention = Attention(config, compute, init=init)
        self.attention_out_norm = norm() if config.sandwich_norms else None
        self.mlp_norm = norm()
        self.mlp = (Experts if config.num_experts else MLP)(config, compute, init=init)
        self.mlp_out_norm = norm() if config.sandwich_norms else None

    def __call__(
        self, x_BTD: Array, rows: Rows, layer: PerLayer, *, with_balance: bool = False
    ) -> tuple[Float[Array, "B T D"], Float[Array, "B T"] | None]:
        """The hidden states after this layer, and with `with_balance` each token's share of the router's loss."""
        attended_BTD = self.attention(self.attention_norm(x_BTD), rows, layer)
        x_BTD = x_BTD + (attended_BTD if self.attention_out_norm is None else self.attention_out_norm(attended_BTD))
        normed_BTD, balance_BT = self.mlp_norm(x_BTD), None
        if isinstance(self.mlp, Experts):
            mixed_BTD, balance_BT = self.mlp(
                normed_BTD, rows.segment_ids_BT, routing_BTK=layer.routing_BTK, with_balance=with_balance
            )
        else:
            mixed_BTD = self.mlp(normed_BTD)
        return x_BTD + (mixed_BTD if self.mlp_out_norm is None else self.mlp_out_norm(mixed_BTD)), balance_BT


class Attention(nnx.Module):
    """Grouped-query attention with rotary embedding; with qk_norm, queries and keys are normalised per head first."""

    def __init__(self, config: DecoderConfig, compute: ComputeConfig, *, init: Init) -> None:
        self._compute, self._scale, self._window = compute, config.score_scale, config.sliding_window
        hidden, head_dim = {"embed": config.hidden_size}, {"head_dim": config.head_dim}
        heads, kv_heads = {"heads": config.num_heads} | head_dim, {"kv_heads": config.num_kv_heads} | head_dim
        self.q = Linear(hidden, heads, init=init, bias=config.qkv_bias, compute=compute)
        self.k = Linear(hidden, kv_heads, init=init, bias=config.qkv_bias, compute=compute)
        self.v = Linear(hidden, kv_heads, init=init, bias=config.qkv_bias, compute=compute)
        self.o = Linear(heads, hidden, init=init, bias=config.output_bias, compute=compute)

        def head_norm() -> RMSNorm | None:
            if not config.qk_norm:
                return None
            return RMSNorm(config.head_dim, "head_dim", config.rms_norm_eps, init=init, offset=config.norm_offset)

        self.q_norm, self.k_norm = head_norm(), head_norm()

    def __call__(self, x_BTD: Array, rows: Rows, layer: PerLayer) -> Float[Array, "B T D"]:
        q_BTNH, k_BTKH, v_BTKH = self.q(x_BTD), self.k(x_BTD), self.v(x_BTD)
        if self.q_norm is not None and self.k_norm is not None:
            q_BTNH, k_BTKH = self.q_norm(q_BTNH), self.k_norm(k_BTKH)
        rotation, window, slides = rows.rotation, None, layer.slides
        if slides is not None:
            # One program computes all layers, so which kind a layer is has to be data.
            window = jnp.where(slides, self._window, x_BTD.shape[1])
            if rows.sliding_rotation is not None:
                (cos, sin), (sliding_cos, sliding_sin) = rotation, rows.sliding_rotation
                rotation = jnp.where(slides, sliding_cos, cos), jnp.where(slides, sliding_sin, sin)
        q_BTNH, k_BTKH = rotate(q_BTNH, rotation), rotate(k_BTKH, rotation)
        attended = attend(q_BTNH, k_BTKH, v_BTKH, rows.segment_ids_BT, self._compute, scale=self._scale, window=window)
        return self.o(attended)


class MLP(nnx.Module):
    """down(activation(gate(x)) * up(x))."""

    def __init__(self, config: DecoderConfig, compute: ComputeConfig, *, init: Init) -> None:
        hidden, width = {"embed": config.hidden_size}, {"mlp": config.intermediate_size}
        self._activation: Activation = config.activation
        self.gate = Linear(hidden, width, init=init, bias=config.mlp_bias, compute=compute)
        self.up = Linear(hidden, width, init=init, bias=config.mlp_bias, compute=compute)
        self.down = Linear(width, hidden, init=init, bias=config.mlp_bias, compute=compute)

    def __call__(self, x_BTD: Array) -> Float[Array, "B T D"]:
        return self.down(activate(self.gate(x_BTD), self._activation) * self.up(x_BTD))


def activate(x: Array, activation: Activation) -> Array:
    """SwiGLU's or GeGLU's gate; the latter by the tanh approximation."""
    return jax.nn.silu(x) if activation == "silu" else jax.nn.gelu(x, approximate=True)
