"""What `jaxagent judge` prints of a judgement."""

from __future__ import annotations

from typing import Any

from jaxagent.commands.judge import describe
from sandbox.baselines import Baseline
from sandbox.judge.result import judgement, timed_judgement
from sandbox.judge.timing import Series
from sandbox.types import Outcome


def shown(*, stored_ms: float, details: dict[str, Any] | None = None) -> list[str]:
    """Of a candidate of 1 ms beside an eager of about 2 ms, whose stored baseline is `stored_ms`."""
    baseline = Baseline(eager_ms=stored_ms, compile_ms=stored_ms / 2, eager={}, compile={}, compile_s=1.0, seconds=2.0)
    candidate, eager = Series([1.0] * 7), Series([1.5, 1.75, 1.9, 2.0, 2.1, 2.75, 3.0])
    return describe(timed_judgement(baseline, candidate, eager, details or {}, {}, 0.0))


def test_the_spread_of_eager_is_shown_beside_that_of_the_candidate():
    verdict, message, quartiles = shown(stored_ms=2.1)
    assert verdict == "correct, reward 2.0" and "1 ms (quartiles 1–1)" in message
    assert quartiles == "torch eager's quartiles: 1.75–2.75 ms (7 rounds)"


def test_a_drift_of_eager_is_told_in_both_directions():
    for stored_ms, ratio in ((1.0, "2.00x its stored 1 ms"), (2.5, "0.80x its stored 2.5 ms")):
        *_, drift = shown(stored_ms=stored_ms)
        assert drift.startswith(f"eager took {ratio}, and torch.compile's stored time was scaled")


def test_a_baseline_that_was_timed_again_is_told_with_what_it_was_before():
    before = {"baseline_retimed": {"drift": 4.0, "eager_ms": 0.5, "compile_ms": 0.25}}
    *_, quartiles, again = shown(stored_ms=2.0, details=before)
    assert quartiles.startswith("torch eager's quartiles")
    assert again.startswith("the baseline was timed again: eager took 4.00x its stored 0.5 ms")


def test_a_candidate_that_was_not_timed_has_its_message_alone():
    assert describe(judgement(Outcome.WRONG, -1.0, "off by 3", {}, {}, 0.0)) == ["wrong, reward -1.0", "off by 3"]
