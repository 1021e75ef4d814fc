"""The reward of the CUDA Agent paper (Eq. 1), and its ablated alternative."""

from __future__ import annotations

from sandbox.types import Judgement

REJECTED = -1.0
_SIGNIFICANT = 0.95
"""A time counts as faster than a baseline when it saves more than 5 % of it."""


def eq1(candidate_ms: float, eager_ms: float, compile_ms: float) -> float:
    """Reward of a correct candidate: 3 beats eager and torch.compile, 2 beats eager, 1 otherwise.

        b(t, t0) = 1 if (t0 - t) / t0 > 0.05 else 0

    A candidate that beats only torch.compile earns 1. What is not correct earns REJECTED without coming here.
    """
    beats_eager, beats_compile = _faster(candidate_ms, eager_ms), _faster(candidate_ms, compile_ms)
    if not beats_eager:
        return 1.0
    return 3.0 if beats_compile else 2.0


def raw_speedup(judgement: Judgement) -> float:
    """The ablation's reward: compile_ms / candidate_ms of a correct candidate, else -1."""
    if not judgement.accepted:
        return REJECTED
    if judgement.candidate_ms is None or judgement.compile_ms is None:
        raise ValueError("judgement.candidate_ms: a raw speed-up needs a timed judgement; judge with timed=True")
    return judgement.compile_ms / judgement.candidate_ms


def _faster(time_ms: float, baseline_ms: float) -> bool:
    if not (time_ms > 0 and baseline_ms > 0):
        raise ValueError(f"times must be positive milliseconds, not {time_ms} and {baseline_ms}")
    return time_ms < _SIGNIFICANT * baseline_ms
