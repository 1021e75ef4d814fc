"""Judgements from what was measured: outcome, reward, message and details."""

from __future__ import annotations

import time
from typing import Any

from sandbox.baselines import Baseline
from sandbox.judge import timing
from sandbox.reward import eq1
from sandbox.types import Judgement, Outcome

MAX_MESSAGE = 8000
"""Characters of a judgement's message; some of it may be a candidate's own words."""


def timed_judgement(
    baseline: Baseline,
    candidate: timing.Series,
    eager: timing.Series,
    details: dict[str, Any],
    phases: dict[str, float],
    began: float,
) -> Judgement:
    """Scales the stored time of torch.compile to the machine's speed of this minute.

    torch.compile is timed once a task, against eager in the same process. Eager is timed again beside every
    candidate; its change since then is the machine's (frequency, neighbours), which compiled code shares. So
    compile_ms = stored compile_ms * (eager now / eager then), that is, the stored ratio is what counts.
    """
    drift = eager.median_ms / baseline.eager_ms
    compile_ms = baseline.compile_ms * drift
    reward = eq1(candidate.median_ms, eager.median_ms, compile_ms)
    details |= {
        "candidate": candidate.to_json(),
        "eager": eager.to_json(),
        "drift": drift,
        "stored_eager_ms": baseline.eager_ms,
        "stored_compile_ms": baseline.compile_ms,
        "speedup_eager": eager.median_ms / candidate.median_ms,
        "speedup_compile": compile_ms / candidate.median_ms,
        "round_ratios": [e / c for e, c in zip(eager.values_ms, candidate.values_ms, strict=True)],
    }
    message = (
        f"correct; {candidate.median_ms:.4g} ms (quartiles {_quartiles(candidate)}), "
        f"torch eager {eager.median_ms:.4g} ms: {eager.median_ms / candidate.median_ms:.2f}x, "
        f"torch.compile {compile_ms:.4g} ms: {compile_ms / candidate.median_ms:.2f}x"
    )
    plain = judgement(Outcome.CORRECT, reward, message, details, phases, began)
    return Judgement(
        outcome=plain.outcome,
        reward=reward,
        message=message,
        candidate_ms=candidate.median_ms,
        eager_ms=eager.median_ms,
        compile_ms=compile_ms,
        details=plain.details,
    )


def judgement(
    outcome: Outcome,
    reward: float | None,
    message: str,
    details: dict[str, Any],
    phases: dict[str, float],
    began: float,
) -> Judgement:
    phases["total_s"] = time.monotonic() - began
    return Judgement(outcome=outcome, reward=reward, message=plain_text(message), details=details | {"phases": phases})


def plain_text(text: str) -> str:
    """`text` as a message for people: not without end, and without halves of characters, which a candidate's error may
    hold and neither files nor tokenizers take."""
    clipped = text if len(text) <= MAX_MESSAGE else f"{text[: MAX_MESSAGE - 1]}…"
    return clipped.encode("utf-8", errors="replace").decode("utf-8")


def _quartiles(series: timing.Series) -> str:
    record = series.to_json()
    return f"{record['p25_ms']:.4g}–{record['p75_ms']:.4g}"
