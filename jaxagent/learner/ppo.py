"""PPO on arrays: advantages, clipped surrogate, importance correction, value loss. Axes: B rows, T positions."""

from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

MAX_LOG_RATIO = 20.0  # exp(20) is beyond every clip and cap, and far from overflow


class SurrogateTerms(NamedTuple):
    """The policy loss and what it was made of."""

    loss: Float[Array, ""]
    ratio: Float[Array, "B T"]
    """pi / pi_old; 1 outside loss_mask."""
    importance: Float[Array, "B T"]
    """Truncated pi_old / pi_rollout; 1 outside loss_mask."""


def compute_gae(
    rewards: Float[Array, "B T"],
    values: Float[Array, "B T"],
    loss_mask: Bool[Array, "B T"],
    segment_ids: Int[Array, "B T"],
    *,
    gamma: float,
    gae_lambda: float,
) -> tuple[Float[Array, "B T"], Float[Array, "B T"]]:
    """Advantages and returns over the policy's own tokens, each packed trajectory for itself.

        delta_t = r_t + gamma * V_next - V_t          A_t = delta_t + gamma * lambda * A_next

    "next" is the next token of the same segment with loss_mask True: prompt, tool output and padding are
    stepped over, not given zero value; the carry resets to (0, 0) where segment_ids changes.
    `values[:, t]` is the value of the state in which token t is chosen. Returns (A, A + V), 0 where loss_mask
    is False.
    """

    def backward(carry, inputs):
        next_advantage, next_value, next_segment = carry
        reward, value, is_policy, segment = inputs
        same = segment == next_segment
        next_advantage, next_value = jnp.where(same, next_advantage, 0.0), jnp.where(same, next_value, 0.0)
        advantage = reward + gamma * next_value - value + gamma * gae_lambda * next_advantage
        carry = jnp.where(is_policy, advantage, next_advantage), jnp.where(is_policy, value, next_value), segment
        return carry, jnp.where(is_policy, advantage, 0.0)

    zeros_B = jnp.zeros(rewards.shape[0], rewards.dtype)
    start = zeros_B, zeros_B, segment_ids[:, -1]
    inputs = rewards.T, values.T, loss_mask.T, segment_ids.T
    _, advantages_TB = jax.lax.scan(backward, start, inputs, reverse=True)
    return advantages_TB.T, jnp.where(loss_mask, advantages_TB.T + values, 0.0)


def policy_loss(
    logprobs: Float[Array, "B T"],
    old_logprobs: Float[Array, "B T"],
    rollout_logprobs: Float[Array, "B T"],
    advantages: Float[Array, "B T"],
    loss_mask: Bool[Array, "B T"],
    loss_weights: Float[Array, "B T"],
    *,
    clip_low: float,
    clip_high: float,
    importance_cap: float | None,
) -> SurrogateTerms:
    """Clipped surrogate with asymmetric clip and a truncated correction for the engine's own numerics and age.

        rho = exp(logprobs - old_logprobs)            c = min(exp(old_logprobs - rollout_logprobs), importance_cap)
        loss = -sum loss_weights * c * min(rho * A, clip(rho, 1 - clip_low, 1 + clip_high) * A)

    No gradient flows through c. importance_cap None means c = 1.
    """
    ratio = _masked_ratio(logprobs, old_logprobs, loss_mask)
    importance = jnp.ones_like(ratio)
    if importance_cap is not None:
        importance = jnp.minimum(_masked_ratio(old_logprobs, rollout_logprobs, loss_mask), importance_cap)
        importance = jax.lax.stop_gradient(importance)
    clipped = jnp.clip(ratio, 1.0 - clip_low, 1.0 + clip_high)
    objective = importance * jnp.minimum(ratio * advantages, clipped * advantages)
    return SurrogateTerms(loss=-jnp.sum(loss_weights * objective), ratio=ratio, importance=importance)


def value_loss(
    values: Float[Array, "B T"],
    returns: Float[Array, "B T"],
    old_values: Float[Array, "B T"] | None,
    loss_weights: Float[Array, "B T"],
    *,
    value_clip: float | None,
) -> Float[Array, ""]:
    """0.5 * sum loss_weights * (V - returns)^2.

    With value_clip the larger of this and the same for V kept within value_clip of old_values, token by token.
    """
    error = jnp.square(values - returns)
    if value_clip is not None:
        assert old_values is not None, "value_clip needs old_values"
        near = old_values + jnp.clip(values - old_values, -value_clip, value_clip)
        error = jnp.maximum(error, jnp.square(near - returns))
    return 0.5 * jnp.sum(loss_weights * error)


def kl_estimate(
    logprobs: Float[Array, "B T"], ref_logprobs: Float[Array, "B T"], loss_mask: Bool[Array, "B T"]
) -> Float[Array, "B T"]:
    """Low-variance estimate of KL(pi || ref) from sampled tokens: q - log q - 1 with q = ref / pi. Never negative."""
    log_q = jnp.where(loss_mask, jnp.clip(ref_logprobs - logprobs, -MAX_LOG_RATIO, MAX_LOG_RATIO), 0.0)
    return jnp.exp(log_q) - log_q - 1.0


def _masked_ratio(
    numerator: Float[Array, "B T"], denominator: Float[Array, "B T"], loss_mask: Bool[Array, "B T"]
) -> Float[Array, "B T"]:
    log_ratio = jnp.where(loss_mask, numerator - denominator, 0.0)
    return jnp.exp(jnp.clip(log_ratio, -MAX_LOG_RATIO, MAX_LOG_RATIO))
