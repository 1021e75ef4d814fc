"""Eq. 1 of the CUDA Agent paper and the ablated reward."""

from __future__ import annotations

import pytest

from sandbox.reward import eq1, raw_speedup
from sandbox.types import Judgement, Outcome


@pytest.mark.parametrize(
    ("times", "reward"),
    [
        ((0.949, 1, 1), 3),
        ((0.951, 1, 1), 1),
        ((0.9, 1, 0.8), 2),
        ((0.7, 0.71, 1), 1),
        ((0.95, 1, 1), 1),
        ((1 / 1.0527, 1, 1), 3),
        ((1 / 1.0526, 1, 1), 1),
        ((0.5, 0.4, 1), 1),
        ((5, 1, 1), 1),
    ],
)
def test_eq1_gives_the_papers_rewards(times, reward):
    assert eq1(*times) == reward


@pytest.mark.parametrize("times", [(0, 1, 1), (1, 0, 1), (1, 1, -1), (float("nan"), 1, 1)])
def test_eq1_refuses_times_that_are_none(times):
    with pytest.raises(ValueError, match="positive milliseconds"):
        eq1(*times)


def test_raw_speedup_is_compile_over_candidate_and_minus_one_for_failures():
    correct = Judgement(outcome=Outcome.CORRECT, reward=3, message="", candidate_ms=2, eager_ms=5, compile_ms=3)
    assert raw_speedup(correct) == 1.5
    assert raw_speedup(Judgement(outcome=Outcome.WRONG, reward=-1, message="")) == -1


def test_raw_speedup_of_an_untimed_judgement_is_an_error():
    with pytest.raises(ValueError, match="timed"):
        raw_speedup(Judgement(outcome=Outcome.CORRECT, reward=None, message=""))
