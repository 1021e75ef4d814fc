"""Clocks of a GPU that disagree, as numbers; the clocks themselves are tested on devices."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from sandbox.judge.batch import BatchTimes
from sandbox.judge.clocks import ClocksReport, compare_clocks
from sandbox.judge.health import GpuHealth
from sandbox.judge.rejection import RejectedError
from sandbox.judge.timing import Contender, Series, is_clear, is_settled, middle_mean, time_batch
from sandbox.types import DeviceError, Outcome


def test_the_middle_mean_ignores_stragglers_on_both_sides():
    assert middle_mean([5.0]) == 5.0 and middle_mean([1.0, 3.0]) == 2.0
    assert middle_mean([2.0, 1.0, 3.0, 1000.0, 2.0, 2.0, 2.0, 0.0]) == 2.0


def test_a_ratio_is_settled_where_rounds_agree_whatever_both_sides_do_together():
    drifting = [1.0, 1.3, 0.9, 1.1, 1.0]
    assert is_settled(Series([2 * each for each in drifting]), Series(drifting))
    assert is_settled(Series([0.1295, 0.131, 0.1302, 0.1305, 0.1299]), Series([0.065] * 5))
    assert not is_settled(Series([0.1295, 0.131, 0.1302, 0.1305, 0.1332]), Series([0.065] * 5))
    assert not is_settled(Series([0.0168] * 5), Series([0.051, 0.052, 0.05, 0.049, 0.051]))


def test_a_reward_is_clear_where_every_round_gives_it_with_room_to_spare():
    eager = Series([4.0, 5.0, 4.5, 8.0, 4.0])
    assert is_clear(Series([1.0, 1.5, 0.9, 2.0, 1.1]), eager, 0.8), "3 in every round, however wide they are apart"
    assert is_clear(Series([40.0, 90.0, 45.0, 80.0, 38.0]), eager, 0.8)
    assert is_clear(Series([3.2, 4.0, 3.6, 6.4, 3.2]), eager, 0.6), "2: between the two"
    assert not is_clear(Series([1.0, 1.5, 0.9, 7.0, 1.1]), eager, 0.8), "one round of five says 2"
    assert not is_clear(Series([2.8, 3.5, 3.15, 5.6, 2.8]), eager, 0.8), "3, and 15 % slower it would be 2"


def gpu_contender(events_ms: list[float], *, seconds: float = 0.01, blank_s: float = 0.006) -> Contender:
    """A batch of four calls."""
    going = [blank_s]

    def ready(slots: list[int]) -> None:
        going[0] = seconds

    def ready_blank(num_calls: int) -> None:
        going[0] = blank_s

    return Contender(
        SimpleNamespace(),  # type: ignore[arg-type]
        ready,
        lambda: BatchTimes(going[0], events_ms, 0.05, 0.01),
        lambda: None,
        ready_blank,
        num_calls=4,
        blank_s=[blank_s],
    )


def test_a_gpus_time_is_that_of_its_events_and_the_outer_clock_is_kept_less_the_blank_batch():
    contender = gpu_contender([0.9, 1.0, 1.0, 1.1])
    assert time_batch(contender, [0, 1, 2, 3]) == 1.0
    assert contender.outside.values_ms == [pytest.approx(1.0)] and contender.wipes_ms == [0.05]


@pytest.mark.parametrize("events_ms", [[], [1.0, 1.0, 1.0], [0.0, 1.0, 1.0, 1.0], [float("nan")] * 4])
def test_events_that_say_nothing_are_our_trouble(events_ms):
    with pytest.raises(DeviceError, match="cannot be relied on"):
        time_batch(gpu_contender(events_ms), [0, 1, 2, 3])


def compared(
    candidate: tuple[list[float], list[float]],
    eager: tuple[list[float], list[float]],
    wipes_ms: tuple[list[float], list[float]] = ([0.05] * 3, [0.05] * 3),
    launches_ms: tuple[list[float], list[float]] = ([0.01] * 3, [0.01] * 3),
) -> ClocksReport:
    """`candidate` and `eager`: milliseconds of rounds by the events and by the supervisor's clock."""
    contenders = []
    for (events, outside), wipes, launches in zip((candidate, eager), wipes_ms, launches_ms, strict=True):
        contender = gpu_contender([1.0] * 4)
        contender.series, contender.outside = Series(events), Series(outside)
        contender.wipes_ms, contender.launches_ms = wipes, launches
        contenders.append(contender)
    return compare_clocks(*contenders)


def test_clocks_that_agree_pass_however_noisy_the_outer_one_is():
    report = compared(([0.017] * 3, [0.03, 0.028, 0.2]), ([0.05] * 3, [0.06, 0.07, 0.3]))
    assert report.outside_ms["candidate"]["min_ms"] == 0.028 and not report.doubt


def test_work_that_events_do_not_see_is_refused_but_asked_for_twice():
    with pytest.raises(RejectedError, match="on torch's current stream") as caught:
        compared(([0.24] * 3, [0.68, 0.64, 0.7]), ([0.05] * 3, [0.06] * 3))
    assert caught.value.outcome is Outcome.REFUSED and caught.value.device_trouble


def test_an_outer_clock_that_is_faster_than_the_device_is_our_trouble():
    with pytest.raises(DeviceError, match="the supervisor's clock says 0.5 ms"):
        compared(([1.0] * 3, [0.5] * 3), ([1.0] * 3, [1.0] * 3))


def test_a_process_in_which_even_what_is_always_the_same_takes_long_was_read_too_slow():
    times = ([0.07] * 3, [0.08] * 3), ([0.05] * 3, [0.06] * 3)
    report = compared(*times, ([0.21, 0.05, 0.2], [0.05, 0.06, 0.05]))
    assert report.doubt == "one wipe took 0.2 ms in this process, 0.05 ms in another"
    report = compared(*times, launches_ms=([0.05, 0.04, 0.08], [0.01, 0.03, 0.04]))
    assert report.doubt == "one launch took 0.04 ms in this process, 0.01 ms in another"
    assert not compared(*times, ([0.06] * 3, [0.05] * 3), ([0.015] * 3, [0.01] * 3)).doubt
    assert not compared(*times, ([], [])).doubt, "calls that are so long that each is a batch"


def test_eager_is_held_against_what_the_device_has_done_before():
    health = GpuHealth(SimpleNamespace(kind="cuda"), SimpleNamespace())  # type: ignore[arg-type]
    for wipe in (0.0, 0.2, 0.05, 0.06, 0.0):
        health.require_prompt({"wipe": wipe, "launch": 0.01})
    with pytest.raises(DeviceError, match="too slow: one wipe took 0.08 ms in this process, 0.05 ms in another"):
        health.require_prompt({"wipe": 0.08, "launch": 0.01})
    with pytest.raises(DeviceError, match="one launch took 0.03 ms"):
        health.require_prompt({"wipe": 0.05, "launch": 0.03})
