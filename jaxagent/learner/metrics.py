"""What an update reports, from arrays that are on the host already. None means not measured."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from jaxagent.batches.sequences import TokenSequence
from rollout.types import Trajectory
from sandbox.types import Outcome

Metrics = dict[str, float | None]
PERCENTILES = (1, 50, 99)
MAX_LOG_RATIO = 20.0
wild_numbers_allowed = np.errstate(over="ignore", invalid="ignore")
"""A step that was skipped because of them is still reported."""


@wild_numbers_allowed
def trajectory_metrics(
    trajectories: Sequence[Trajectory],
    sequences: Sequence[TokenSequence],
    rewards: Sequence[float],
    *,
    policy_version: int,
) -> Metrics:
    """Rewards, outcomes, lengths and staleness of a batch. `policy_version` is the learner's before the update."""
    outcomes = [str(trajectory.judgement.outcome) for trajectory in trajectories]
    staleness = np.array([policy_version - sequence.oldest_version for sequence in sequences])
    metrics: Metrics = {
        "mean_reward": float(np.mean(rewards)),
        "std_reward": float(np.std(rewards)),
        "clipped_length_ratio": float(np.mean([sequence.truncated for sequence in sequences])),
        "mean_turns": float(np.mean([len(trajectory.turns) for trajectory in trajectories])),
        "mean_policy_tokens": float(np.mean([sequence.num_policy_tokens for sequence in sequences])),
        "num_trajectories": float(len(sequences)),
        "staleness_mean": float(staleness.mean()),
        "staleness_max": float(staleness.max()),
    }
    metrics |= outcome_metrics(outcomes)
    for age, count in zip(*np.unique(staleness, return_counts=True), strict=True):
        metrics[f"staleness_{age}"] = float(count)
    return metrics


def outcome_metrics(outcomes: Sequence[str]) -> Metrics:
    """The share of every outcome, also of those that did not occur: a curve has no gaps."""
    return {f"outcome_{outcome}": outcomes.count(str(outcome)) / len(outcomes) for outcome in Outcome}


@wild_numbers_allowed
def ppo_token_metrics(
    tokens: Mapping[str, np.ndarray], *, clip_low: float, clip_high: float, importance_cap: float | None
) -> Metrics:
    """`tokens` holds one entry a policy token: what the surrogate saw, over all optimizer steps of the update."""
    ratio, log_ratio = tokens["ratio"], tokens["logprobs"] - tokens["old_logprobs"]
    outside = np.where(tokens["advantages"] > 0, ratio > 1 + clip_high, ratio < 1 - clip_low)
    metrics: Metrics = {
        "entropy": float(tokens["entropy"].mean()),
        "clip_fraction": float(outside.mean()),
        "approx_kl": float((ratio - 1 - log_ratio).mean()),
        "importance_mean": float(tokens["importance"].mean()),
        "importance_capped": None if importance_cap is None else float((tokens["importance"] >= importance_cap).mean()),
        "advantages_mean": float(tokens["advantages"].mean()),
        "advantages_std": float(tokens["advantages"].std()),
        **_percentiles("ratio", ratio),
    }
    if "ref_kl" in tokens:
        metrics["ref_kl"] = float(tokens["ref_kl"].mean())
    return metrics


@wild_numbers_allowed
def gap_metrics(old_logprobs: np.ndarray, rollout_logprobs: np.ndarray, is_fresh: np.ndarray) -> Metrics:
    """How far trainer and engine are apart on the tokens that were sampled.

    logprob_gap_* counts every policy token, so it also holds what the policy learned since; fresh_* only tokens that
    the current weights sampled, where any gap is numerics alone (None: there are none).
    """
    gap = np.abs(old_logprobs - rollout_logprobs)
    ratio = np.exp(np.clip(old_logprobs - rollout_logprobs, -MAX_LOG_RATIO, MAX_LOG_RATIO))
    metrics: Metrics = {
        "logprob_gap_mean": float(gap.mean()),
        "logprob_gap_max": float(gap.max()),
        "rollout_kl": float((rollout_logprobs - old_logprobs).mean()),
        **_percentiles("logprob_gap", gap),
        **_percentiles("rollout_ratio", ratio),
    }
    fresh = gap[is_fresh]
    metrics["fresh_logprob_gap_mean"] = float(fresh.mean()) if fresh.size else None
    metrics["fresh_logprob_gap_max"] = float(fresh.max()) if fresh.size else None
    return metrics


@wild_numbers_allowed
def explained_variance(values: np.ndarray, returns: np.ndarray) -> float | None:
    """1 - Var(returns - values) / Var(returns): 1 is perfect, 0 as good as a constant; None for constant returns."""
    variance = float(np.var(returns))
    return None if variance == 0 else 1.0 - float(np.var(returns - values)) / variance


@wild_numbers_allowed
def finetune_metrics(tokens: Mapping[str, np.ndarray]) -> Metrics:
    return {
        "nll": float(-tokens["logprobs"].mean()),
        "entropy": float(tokens["entropy"].mean()),
        "perplexity": float(np.exp(-tokens["logprobs"].mean())),
    }


def _percentiles(name: str, values: np.ndarray) -> Metrics:
    return {
        f"{name}_p{percent}": float(value)
        for percent, value in zip(PERCENTILES, np.percentile(values, PERCENTILES), strict=True)
    }
