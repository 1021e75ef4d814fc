"""One PPO update: targets from the networks as they are, then the optimizer steps, then what they did in numbers."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from jaxagent.batches.minibatch import Minibatch, to_host
from jaxagent.config.learner import PPOConfig
from jaxagent.config.stages import PPOStage
from jaxagent.learner.metrics import Metrics, explained_variance, gap_metrics, ppo_token_metrics
from jaxagent.learner.steps import Steps
from jaxagent.learner.token_records import token_records
from jaxagent.learner.types import StepOutput, Targets
from jaxagent.run.token_records import TokenRecords


def run_ppo_update(
    steps: Steps,
    minibatches: Sequence[Minibatch],
    *,
    stage: PPOStage,
    policy_version: int,
    on_tokens: Callable[[TokenRecords], None] | None = None,
) -> Metrics:
    """Critic and actor take their steps on each minibatch; all targets are fixed before the first step.

    `on_tokens` gets ratios, advantages and values at the tokens of a few trajectories.
    """
    cfg, temperature = steps.config.ppo, stage.dialogue.temperature
    estimates = [steps.value_targets(minibatch) for minibatch in minibatches]
    advantages = [estimate["advantages"] for estimate in estimates]
    if cfg.normalize_advantages:
        advantages = _normalized(minibatches, advantages)
    targets = [
        _targets(steps, minibatch, advantage, temperature=temperature, several=len(minibatches) > 1)
        for minibatch, advantage in zip(minibatches, advantages, strict=True)
    ]
    actor_outputs, critic_outputs = [], []
    for minibatch, target, estimate in zip(minibatches, targets, estimates, strict=True):
        for _ in range(cfg.critic_updates):
            critic_outputs.append(
                steps.value(minibatch, estimate["returns"], stage.critic_optimizer, old_values=estimate["values"])
            )
        actor_outputs.append(steps.ppo(minibatch, target, stage.actor_optimizer, temperature=temperature))
    tokens = _policy_tokens(minibatches, actor_outputs, estimates, advantages, policy_version=policy_version)
    if on_tokens is not None:
        on_tokens(_token_records(minibatches, actor_outputs, estimates, advantages))
    return {
        **_token_metrics(tokens, cfg),
        **steps.report("actor", actor_outputs[-1]),
        **steps.report("critic", critic_outputs[-1]),
    }


def _targets(
    steps: Steps, minibatch: Minibatch, advantages: np.ndarray, *, temperature: float, several: bool
) -> Targets:
    """With one optimizer step the current logprobs are the old ones, and no pass of its own is spent on them."""
    old_logprobs = steps.logprobs(minibatch, temperature=temperature) if several else None
    ref_logprobs = None
    if steps.has_reference:
        ref_logprobs = steps.logprobs(minibatch, temperature=temperature, reference=True)
    return Targets(advantages=minibatch.put(advantages), old_logprobs=old_logprobs, ref_logprobs=ref_logprobs)


def _normalized(minibatches: Sequence[Minibatch], advantages: Sequence[np.ndarray]) -> list[np.ndarray]:
    """Mean 0 and standard deviation 1 over the policy's tokens of the whole batch."""
    masks = [minibatch.packed.batch.loss_mask for minibatch in minibatches]
    tokens = np.concatenate([array[mask] for array, mask in zip(advantages, masks, strict=True)])
    mean, std = tokens.mean(), tokens.std()
    return [
        np.where(mask, (array - mean) / (std + 1e-8), 0).astype(np.float32)
        for array, mask in zip(advantages, masks, strict=True)
    ]


def _policy_tokens(
    minibatches: Sequence[Minibatch],
    outputs: Sequence[StepOutput],
    estimates: Sequence[dict[str, np.ndarray]],
    advantages: Sequence[np.ndarray],
    *,
    policy_version: int,
) -> dict[str, np.ndarray]:
    """Everything that metrics need, one entry a policy token of the batch."""
    parts: list[dict[str, Any]] = []
    for minibatch, output, estimate, advantage in zip(minibatches, outputs, estimates, advantages, strict=True):
        versions = minibatch.per_sequence([sequence.policy_versions for sequence in minibatch.sequences])
        batch = minibatch.packed.batch
        parts.append(
            minibatch.policy_tokens(
                {
                    **output.per_token,
                    "values": estimate["values"],
                    "returns": estimate["returns"],
                    "advantages": advantage,
                    "rollout_logprobs": batch.rollout_logprobs,
                }
            )
            | {"is_fresh": versions == policy_version}
        )
    return {name: np.concatenate([part[name] for part in parts]) for name in parts[0]}


def _token_records(
    minibatches: Sequence[Minibatch],
    outputs: Sequence[StepOutput],
    estimates: Sequence[dict[str, np.ndarray]],
    advantages: Sequence[np.ndarray],
) -> TokenRecords:
    arrays = [
        {"ratio": to_host(output.per_token["ratio"]), "advantage": advantage, "value": estimate["values"]}
        for output, estimate, advantage in zip(outputs, estimates, advantages, strict=True)
    ]
    return token_records(minibatches, arrays)


def _token_metrics(tokens: dict[str, np.ndarray], cfg: PPOConfig) -> Metrics:
    metrics = ppo_token_metrics(
        tokens, clip_low=cfg.clip_low, clip_high=cfg.clip_high, importance_cap=cfg.importance_cap
    )
    metrics |= gap_metrics(tokens["old_logprobs"], tokens["rollout_logprobs"], tokens["is_fresh"])
    metrics["explained_variance"] = explained_variance(tokens["values"], tokens["returns"])
    metrics["mean_value"] = float(tokens["values"].mean())
    metrics["mean_return"] = float(tokens["returns"].mean())
    return metrics
