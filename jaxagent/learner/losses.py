"""Losses of a network over one microbatch. Each returns (loss, what every token contributed, for metrics)."""

from collections.abc import Callable, Mapping
from typing import Any, Protocol

import jax
import jax.numpy as jnp
from flax import nnx
from jaxtyping import Array, Float, Int

from jaxagent.batches.batch import Batch
from jaxagent.config.learner import PPOConfig
from jaxagent.learner.logprobs import shift_right, token_logprobs
from jaxagent.learner.ppo import compute_gae, kl_estimate, policy_loss, value_loss
from jaxagent.learner.types import Targets

PerToken = dict[str, Float[Array, "B T"]]
Scalars = Mapping[str, Float[Array, ""]]
Loss = Callable[[nnx.Module, Batch, Targets, Scalars], tuple[Float[Array, ""], PerToken]]
Score = Callable[[nnx.Module, Batch, Scalars], PerToken]


class Decoder(Protocol):
    """A causal language model over packed rows: a token sees earlier tokens of its own segment only."""

    def __call__(
        self, token_ids_BT: Int[Array, "B T"], positions_BT: Int[Array, "B T"], segment_ids_BT: Int[Array, "B T"]
    ) -> Float[Array, "B T D"]: ...

    def run(
        self,
        token_ids_BT: Int[Array, "B T"],
        positions_BT: Int[Array, "B T"],
        segment_ids_BT: Int[Array, "B T"],
        *,
        with_balance: bool,
    ) -> tuple[Float[Array, "B T D"], Float[Array, "B T"] | None]: ...

    def head(self) -> Float[Array, "V D"]: ...


class Critic(Protocol):
    """A value network: the value at position t is of the state after token t."""

    def __call__(
        self, token_ids_BT: Int[Array, "B T"], positions_BT: Int[Array, "B T"], segment_ids_BT: Int[Array, "B T"]
    ) -> Float[Array, "B T"]: ...


def make_ppo_loss(cfg: PPOConfig, *, chunk_tokens: int, router_aux_coef: float = 0.0) -> Loss:
    """Surrogate, plus entropy and KL terms where their coefficients aren't 0 (the paper has neither)."""

    def ppo_loss(actor: Any, batch: Batch, targets: Targets, scalars: Scalars):
        (logprobs, entropy), router_loss = _score_and_router_loss(actor, batch, scalars, chunk_tokens, router_aux_coef)
        old_logprobs = targets.old_logprobs
        if old_logprobs is None:
            old_logprobs = jax.lax.stop_gradient(logprobs)
        assert targets.advantages is not None
        terms = policy_loss(
            logprobs,
            old_logprobs,
            batch.rollout_logprobs,
            targets.advantages,
            batch.loss_mask,
            batch.loss_weights,
            clip_low=cfg.clip_low,
            clip_high=cfg.clip_high,
            importance_cap=cfg.importance_cap,
        )
        loss = terms.loss
        per_token = {
            "logprobs": logprobs,
            "old_logprobs": old_logprobs,
            "entropy": entropy,
            "ratio": terms.ratio,
            "importance": terms.importance,
        }
        if cfg.entropy_coef > 0:
            loss -= cfg.entropy_coef * jnp.sum(batch.loss_weights * entropy)
        if cfg.kl_coef > 0:
            assert targets.ref_logprobs is not None
            kl = kl_estimate(logprobs, targets.ref_logprobs, batch.loss_mask)
            loss += cfg.kl_coef * jnp.sum(batch.loss_weights * kl)
            per_token["ref_kl"] = kl
        return loss + router_loss, per_token

    return ppo_loss


def make_finetune_loss(*, chunk_tokens: int, router_aux_coef: float = 0.0) -> Loss:
    """Negative log-likelihood of the policy's tokens: stage 0 and rejection fine-tuning."""

    def finetune_loss(actor: Any, batch: Batch, targets: Targets, scalars: Scalars):
        del targets
        (logprobs, entropy), router_loss = _score_and_router_loss(actor, batch, scalars, chunk_tokens, router_aux_coef)
        loss = router_loss - jnp.sum(batch.loss_weights * logprobs)
        return loss, {"logprobs": logprobs, "entropy": entropy}

    return finetune_loss


def make_critic_loss(cfg: PPOConfig) -> Loss:
    """Squared error to the returns: PPO's critic and value pre-training."""

    def critic_loss(critic: Any, batch: Batch, targets: Targets, scalars: Scalars):
        del scalars
        values = score_critic(critic, batch)
        assert targets.returns is not None
        loss = value_loss(values, targets.returns, targets.old_values, batch.loss_weights, value_clip=cfg.value_clip)
        return loss, {"values": values}

    return critic_loss


def make_actor_score(*, chunk_tokens: int) -> Score:
    def actor_score(actor: Any, batch: Batch, scalars: Scalars) -> PerToken:
        logprobs, _ = score_actor(actor, batch, temperature=scalars["temperature"], chunk_tokens=chunk_tokens)
        return {"logprobs": logprobs}

    return actor_score


def make_value_target_score(cfg: PPOConfig) -> Score:
    """Values of the critic as it is, and the advantages and returns that follow from them."""

    def value_target_score(critic: Any, batch: Batch, scalars: Scalars) -> PerToken:
        del scalars
        values = score_critic(critic, batch)
        advantages, returns = compute_gae(
            batch.rewards, values, batch.loss_mask, batch.segment_ids, gamma=cfg.gamma, gae_lambda=cfg.gae_lambda
        )
        return {"values": values, "advantages": advantages, "returns": returns}

    return value_target_score


def score_actor(
    actor: Decoder,
    batch: Batch,
    *,
    temperature: Float[Array, ""] | float,
    chunk_tokens: int,
) -> tuple[Float[Array, "B T"], Float[Array, "B T"]]:
    """(logprobs, entropy) of the policy's tokens at the sampling temperature, 0 outside loss_mask."""
    hidden_BTD = actor(batch.token_ids, batch.positions, batch.segment_ids)
    return _score_hidden(actor, hidden_BTD, batch, temperature=temperature, chunk_tokens=chunk_tokens)


def _score_hidden(actor: Decoder, hidden_BTD: Array, batch: Batch, *, temperature: Any, chunk_tokens: int):
    logprobs, entropy = token_logprobs(
        hidden_BTD, batch.token_ids, actor.head(), temperature=temperature, chunk_tokens=chunk_tokens
    )
    return jnp.where(batch.loss_mask, logprobs, 0.0), jnp.where(batch.loss_mask, entropy, 0.0)


def _score_and_router_loss(actor: Decoder, batch: Batch, scalars: Scalars, chunk_tokens: int, router_aux_coef: float):
    """((logprobs, entropy), the load-balancing loss of a mixture of experts): 0 where it is off or there is none."""
    hidden_BTD, balance_BT = actor.run(
        batch.token_ids, batch.positions, batch.segment_ids, with_balance=router_aux_coef > 0
    )
    scored = _score_hidden(actor, hidden_BTD, batch, temperature=scalars["temperature"], chunk_tokens=chunk_tokens)
    return scored, 0.0 if balance_BT is None else router_aux_coef * jnp.sum(batch.loss_weights * balance_BT)


def score_critic(critic: Critic, batch: Batch) -> Float[Array, "B T"]:
    """V of the state in which each policy token is chosen (the token itself is not seen), 0 outside loss_mask."""
    after_BT = critic(batch.token_ids, batch.positions, batch.segment_ids).astype(jnp.float32)
    return jnp.where(batch.loss_mask, shift_right(after_BT), 0.0)
