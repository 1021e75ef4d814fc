"""The clock: interleaved batches of candidate and baseline, timed from outside of both.

    round r:   draw inputs → same bytes to both → [candidate batch] [eager batch]   in random order
               one process runs, the other is stopped

A time is the wall time of a batch on the supervisor's clock, less that of an empty batch, over its calls. Medians over
rounds are reported with their quartiles. Warm-up goes by time, since a fresh process reads several times too slow at
first and whoever is timed first would lose.

On a GPU a batch also wipes the cache before every call (sandbox.judge.gpu_clock). The time is then that of the device's
events, the only clock that is fine enough for kernels of microseconds; the supervisor's clock, less a batch of as many
calls of nothing, has to agree with it (Rounds._compare_clocks).
"""

from __future__ import annotations

import math
import secrets
import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from sandbox.judge.batch import BatchTimes
from sandbox.judge.fresh import Slots
from sandbox.judge.worker import Worker
from sandbox.reward import eq1
from sandbox.types import DeviceError

TARGET_BATCH_S = 0.004
_WARM_BATCH_S = 0.016
_MAX_TIMING_S = 8.0
_NUM_EMPTY = 7
_NUM_EMPTY_GPU = 3
_NUM_BLANKS = 4
_FIRST_BATCHES = 3
"""Of calls. Beyond them, batches of nothing keep a GPU's clock frequency up: inputs take longer to copy than to use."""
_NARROW = 0.01
"""Half of what a settled ratio's interval may be wide, as a part of the ratio."""
_CLEAR = 1.15
"""Factor by which every round has to stay clear of where the reward changes."""
_LEAST_OWN_SHARE = 0.25
"""Of a batch's wall time at most the rest is taken for the round trip: a time is never near zero by subtraction."""


@dataclass(slots=True)
class Series:
    """Milliseconds a call of one model, a value a round."""

    values_ms: list[float] = field(default_factory=list)

    @property
    def median_ms(self) -> float:
        return statistics.median(self.values_ms)

    @property
    def spread(self) -> float:
        """Upper over lower quartile: 1.0 where every round reads alike."""
        lower, _, upper = statistics.quantiles(self.values_ms, n=4)
        return upper / lower

    def to_json(self) -> dict[str, Any]:
        ordered = sorted(self.values_ms)
        quartiles = statistics.quantiles(ordered, n=4) if len(ordered) > 1 else [ordered[0]] * 3
        return {
            "median_ms": self.median_ms,
            "p25_ms": quartiles[0],
            "p75_ms": quartiles[2],
            "min_ms": ordered[0],
            "max_ms": ordered[-1],
            "mean_ms": statistics.fmean(ordered),
            "std_ms": statistics.stdev(ordered) if len(ordered) > 1 else 0.0,
            "rounds": len(ordered),
        }


@dataclass(slots=True)
class Contender:
    """Something to be timed: a worker and the name of a model in it.

    `ready` makes a batch over slots and leaves the process stopped; `after` follows the timed batch.
    """

    worker: Worker
    ready: Callable[[list[int]], None]
    go: Callable[[], BatchTimes]
    after: Callable[[], None]
    ready_blank: Callable[[int], None] | None = None
    """Makes a batch of so many calls of nothing; None where the round trip of an empty one is all there is."""
    series: Series = field(default_factory=Series)
    outside: Series = field(default_factory=Series)
    """On a GPU, the same by the supervisor's clock."""
    wipes_ms: list[float] = field(default_factory=list)
    """On a GPU, what a wipe of the cache took, a value a timed batch."""
    launches_ms: list[float] = field(default_factory=list)
    """What launching a call of nothing took, a value a batch of such."""
    blank_s: list[float] = field(default_factory=list)
    overhead_s: float = 0.0
    warm_s: float = 0.0
    """Seconds a call, as the warm-up's last batch read."""
    num_calls: int = 1


def measure_overhead(contender: Contender) -> None:
    """The round trip of a batch without calls; the shortest, so that a disturbed one takes nothing off a time."""
    times = []
    for _ in range(_NUM_EMPTY if contender.ready_blank is None else _NUM_EMPTY_GPU):
        contender.ready([])
        times.append(contender.go().seconds)
        contender.after()
    contender.overhead_s = min(times)


def first_calls(contenders: list[Contender], slots: Slots) -> None:
    """On a GPU: what only first calls take, such as loading kernels; others may use the device meanwhile."""
    for contender in contenders:
        measure_overhead(contender)
        for _ in range(_FIRST_BATCHES):
            _untimed_batch(contender, slots, contender.num_calls)


def warm_up(contenders: list[Contender], slots: Slots, *, warmup_ms: float) -> None:
    """Runs each until `warmup_ms` have passed, then sets how many calls its batches have.

    A GPU, whose clock frequency is one for all that run there, is warmed up once, after `first_calls`.
    """
    for index, contender in enumerate(contenders):
        if contender.ready_blank is None:
            _warm_up_on_cpu(contender, slots, warmup_ms / 1000)
            continue
        began = time.monotonic()
        _untimed_batch(contender, slots, contender.num_calls)
        while not index and time.monotonic() - began < warmup_ms / 1000:
            time_blank(contender)
        contender.blank_s.clear()
        for _ in range(_NUM_BLANKS):
            time_blank(contender)


def _warm_up_on_cpu(contender: Contender, slots: Slots, goal_s: float) -> None:
    """In batches that are longer than those that are timed, but for the last, which says how long these are."""
    measure_overhead(contender)
    spent, num_calls = _untimed_batch(contender, slots, 1), 0
    while spent < goal_s:
        longer = min(goal_s - spent, _WARM_BATCH_S) / contender.warm_s
        num_calls = max(1, min(len(slots.every), math.ceil(longer)))
        spent += _untimed_batch(contender, slots, num_calls)
    if num_calls != contender.num_calls:
        _untimed_batch(contender, slots, contender.num_calls)


def _untimed_batch(contender: Contender, slots: Slots, num_calls: int) -> float:
    """Seconds of a batch, by which the next have as many calls as fit into TARGET_BATCH_S."""
    contender.ready([slots.filled[call % len(slots.filled)] for call in range(num_calls)])
    last = contender.go().seconds
    contender.after()
    each = max(last - contender.overhead_s, _LEAST_OWN_SHARE * last) / num_calls
    contender.num_calls = max(1, min(len(slots.every), math.ceil(TARGET_BATCH_S / each)))
    contender.warm_s = each
    return last


def is_settled(candidate: Series, eager: Series) -> bool:
    """All ratios of candidate and eager, round by round, lie close together, and so does their median: of five
    independent ones it lies between the lowest and the highest 15 times in 16."""
    ratios = [mine / theirs for mine, theirs in zip(candidate.values_ms, eager.values_ms, strict=True)]
    return max(ratios) - min(ratios) <= 2 * _NARROW * statistics.median(ratios)


def is_clear(candidate: Series, eager: Series, compile_ratio: float) -> bool:
    """Each round alone gives the same reward, and would for a candidate that is a little faster or slower too.

    `compile_ratio`: time of torch.compile over eager's.
    """
    rewards = {
        eq1(mine * change, theirs, theirs * compile_ratio)
        for mine, theirs in zip(candidate.values_ms, eager.values_ms, strict=True)
        for change in (1 / _CLEAR, _CLEAR)
    }
    return len(rewards) == 1


def plan_rounds(rounds: int, round_s: float) -> int:
    """As many rounds as asked for, fewer (never under 3) where a task is so slow that they would take too long."""
    return max(3, min(rounds, int(_MAX_TIMING_S / max(round_s, 1e-6))))


def shuffled(things: list[Any]) -> list[Any]:
    """In an order that nobody can foresee."""
    order = list(things)
    for index in range(len(order) - 1, 0, -1):
        other = secrets.randbelow(index + 1)
        order[index], order[other] = order[other], order[index]
    return order


def time_batch(contender: Contender, slots: list[int]) -> float:
    """One timed batch; the process stays as `go` leaves it. Milliseconds a call. Raises DeviceError."""
    contender.ready(slots)
    times = contender.go()
    if contender.ready_blank is None:
        own_s = max(times.seconds - contender.overhead_s, _LEAST_OWN_SHARE * times.seconds)
        return own_s / len(slots) * 1e3
    if len(times.calls_ms) != len(slots) or not all(0 < each < math.inf for each in times.calls_ms):
        raise DeviceError(
            f"the device's events say {times.calls_ms[:3]} … ms to {len(slots)} calls; they cannot be relied on"
        )
    contender.outside.values_ms.append((times.seconds - statistics.median(contender.blank_s)) / len(slots) * 1e3)
    if times.wipe_ms > 0:
        contender.wipes_ms.append(times.wipe_ms)
    return middle_mean(times.calls_ms)


def middle_mean(values: list[float]) -> float:
    """Mean without the lowest and the highest quarter: averages like a mean, is moved by stragglers like a median."""
    ordered, cut = sorted(values), len(values) // 4
    return statistics.fmean(ordered[cut : len(ordered) - cut])


def time_blank(contender: Contender) -> float:
    """Times a batch of calls of nothing, where a batch has costs of its own a call; seconds."""
    if contender.ready_blank is None:
        return 0.0
    contender.ready_blank(contender.num_calls)
    times = contender.go()
    contender.blank_s.append(times.seconds)
    contender.launches_ms.append(times.launch_ms)
    contender.after()
    return contender.blank_s[-1]
