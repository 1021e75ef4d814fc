"""When a GPU counts as still, as numbers; that others stand still there is tested on devices."""

from __future__ import annotations

import pytest

from sandbox.judge.still import Stillness
from sandbox.judge.timing import Series
from sandbox.judge.turn import TurnReport
from sandbox.types import DeviceError

IDLE = [0.09, 0.1, 0.1, 0.11] * 6
SHARED = [0.1, 0.1, 2.1, 0.1, 2.3, 0.1] * 4
BEHIND_A_QUEUE = [1.9, 2.0, 2.1, 2.0] * 6


def test_a_gpu_with_others_at_work_is_not_still_and_one_hiccup_changes_nothing():
    stillness = Stillness()
    assert stillness.is_still(IDLE)
    assert not stillness.is_still(SHARED) and not stillness.is_still(BEHIND_A_QUEUE)
    assert stillness.is_still([*IDLE[:-1], 5.0])


def test_what_a_probe_takes_at_best_is_learnt_once_others_are_gone():
    stillness = Stillness()
    stillness.is_still(BEHIND_A_QUEUE)
    assert stillness.is_still(IDLE) and stillness.best_ms == pytest.approx(0.1)
    assert not stillness.is_still(BEHIND_A_QUEUE)


def test_waiting_ends_when_what_was_launched_is_done_or_time_is_up():
    stillness = Stillness()
    assert stillness.is_still(IDLE)
    series = iter([BEHIND_A_QUEUE, SHARED, IDLE])
    still, _ = stillness.wait(lambda: next(series))
    assert still and next(series, None) is None
    still, waited_s = stillness.wait(lambda: BEHIND_A_QUEUE, timeout_s=0.05)
    assert not still and 0.05 < waited_s < 1.0


def test_times_from_a_gpu_that_was_not_at_rest_count_only_where_they_agree():
    steady, torn = Series(values_ms=[1.0, 1.01, 1.02, 1.0]), Series(values_ms=[1.0, 2.0, 1.0, 2.0])
    TurnReport(still=True).require_calm(torn)
    TurnReport(still=False).require_calm(steady)
    with pytest.raises(DeviceError, match="somebody else is at work on the GPU"):
        TurnReport(still=False).require_calm(torn)
