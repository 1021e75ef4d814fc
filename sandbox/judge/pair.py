"""Eager against torch.compile in one process: what a baseline is made of."""

from __future__ import annotations

import secrets

from sandbox.judge import timing
from sandbox.judge.contenders import oracle_contender
from sandbox.judge.fresh import Slots, make_slots
from sandbox.judge.oracle_side import OracleSide

_BASELINE_ROUNDS = 11
_BASELINE_WARMUP_MS = 150.0
_BASELINE_ATTEMPTS = 3
_CALM = 1.25
"""Upper over lower quartile of the rounds below which a baseline is not timed again."""


def time_pair(oracle: OracleSide) -> tuple[timing.Series, timing.Series]:
    """Eager and compiled reference in one process, interleaved; the calmest of a few series of rounds."""
    eager, compiled = (oracle_contender(oracle, name) for name in ("eager", "compile"))
    slots = make_slots(oracle, None, rounds=_BASELINE_ROUNDS)
    slots.fill()
    if oracle.device == "cuda":
        timing.first_calls([compiled, eager], slots)
    timing.warm_up([compiled, eager], slots, warmup_ms=_BASELINE_WARMUP_MS)
    taken: list[tuple[timing.Series, timing.Series]] = []
    for _ in range(_BASELINE_ATTEMPTS):
        eager.series, compiled.series = timing.Series(), timing.Series()
        _time_rounds(eager, compiled, slots)
        taken.append((eager.series, compiled.series))
        if _unrest(taken[-1]) < _CALM:
            break
    return min(taken, key=_unrest)


def _time_rounds(eager: timing.Contender, compiled: timing.Contender, slots: Slots) -> None:
    count = max(eager.num_calls, compiled.num_calls)
    for _ in range(_BASELINE_ROUNDS):
        used = secrets.SystemRandom().sample(slots.for_calls(count), count)
        slots.refresh(used)
        for contender in timing.shuffled([eager, compiled]):
            contender.series.values_ms.append(timing.time_batch(contender, used[: contender.num_calls]))
            contender.after()


def _unrest(pair: tuple[timing.Series, timing.Series]) -> float:
    return max(series.spread for series in pair)
