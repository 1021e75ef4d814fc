"""Packed trajectories as arrays. Axes: M microbatches, B rows, T positions of a row."""

from typing import Any, NamedTuple

from jaxtyping import Bool, Float, Int

AnyArray = Any
"""NumPy on the host, jax.Array on the devices and under jit."""


class Batch(NamedTuple):
    """Packed trajectories. A token's mask, weight, logprob and reward stand at the token's own position.

    `*rows` is (M, B) for a whole batch and (B,) for one microbatch.
    """

    token_ids: Int[AnyArray, "*rows T"]
    positions: Int[AnyArray, "*rows T"]
    """From 0 in every trajectory."""
    segment_ids: Int[AnyArray, "*rows T"]
    """1, 2, … for the trajectories of a row, 0 for padding."""
    loss_mask: Bool[AnyArray, "*rows T"]
    """True only on tokens that the policy sampled."""
    loss_weights: Float[AnyArray, "*rows T"]
    """Fixed over the whole batch before it is split, and 0 outside loss_mask: every loss is sum(loss_weights * x)."""
    rollout_logprobs: Float[AnyArray, "*rows T"]
    """As sampled by the engine, at the sampling temperature; 0 outside loss_mask."""
    rewards: Float[AnyArray, "*rows T"]
    """A trajectory's reward on its last policy token, 0 elsewhere. Real numbers: 0.75 stays 0.75."""
