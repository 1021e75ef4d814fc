"""When a stored baseline is taken again. How it is taken is tested on devices."""

from __future__ import annotations

from typing import Any

import judge_cases as cases
import pytest

from sandbox.baselines import Baseline
from sandbox.config import JudgeConfig
from sandbox.judge.health import GpuHealth
from sandbox.judge.spec import DeviceSpec
from sandbox.judge.task_baselines import TaskBaselines
from sandbox.judge.timing import Series
from sandbox.types import DeviceError, Task


def baseline(eager_ms: float) -> Baseline:
    return Baseline(eager_ms=eager_ms, compile_ms=0.8 * eager_ms, eager={}, compile={}, compile_s=1.0, seconds=2.0)


@pytest.fixture
def taken(monkeypatch) -> list[float]:
    """Eager times that further measurements will find; each that is made takes the first."""
    found: list[float] = []
    monkeypatch.setattr(TaskBaselines, "of", lambda self, task, *, fresh=False: baseline(found.pop(0)))
    return found


@pytest.fixture
def baselines(tmp_path) -> TaskBaselines:
    none: Any = None
    config = JudgeConfig(baseline_dir=tmp_path)
    return TaskBaselines(config, DeviceSpec(cores=[0]), workers=none, turns=none, health=none, has_room=lambda _: True)


def revise(baselines: TaskBaselines, stored: Baseline, eager_ms: float, task: Task = cases.CHAIN_TASK) -> tuple:
    details: dict[str, Any] = {}
    found = baselines.revised(task, stored, Series([eager_ms] * 3), details)
    return found, details.get("baseline_retimed", {}).get("drift")


def test_eager_near_its_stored_time_leaves_the_baseline_alone(baselines, taken):
    stored = baseline(4.0)
    assert [revise(baselines, stored, ms) for ms in (2.1, 4.0, 7.9)] == [(stored, None)] * 3


def test_eager_far_away_has_it_taken_again_once_for_each_distance(baselines, taken):
    stored = baseline(4.0)
    taken.append(9.0)
    now, drift = revise(baselines, stored, 10.0)
    assert (now.eager_ms, drift) == (9.0, 2.5)
    # the machine goes back and forth between the two, and a little beyond
    assert [revise(baselines, now, ms) for ms in (4.0, 10.0, 2.5, 19.0)] == [(now, None)] * 4
    taken.append(25.0)
    assert revise(baselines, now, 24.0)[1] == pytest.approx(24 / 9)
    assert not taken


def test_what_is_known_of_one_task_says_nothing_of_another(baselines, taken):
    taken += [9.0, 9.0]
    for task in (cases.CHAIN_TASK, cases.AFFINE_TASK):
        assert revise(baselines, baseline(4.0), 10.0, task)[1] == 2.5


def test_on_a_gpu_an_eager_that_its_baseline_denies_twice_is_our_trouble(tmp_path, taken):
    none: Any = None
    spec = DeviceSpec(cores=[0], kind="cuda", visible="0")
    health = GpuHealth(spec, none)
    on_gpu = TaskBaselines(
        JudgeConfig(baseline_dir=tmp_path), spec, workers=none, turns=none, health=health, has_room=lambda _: True
    )
    stored = baseline(0.05)
    taken += [0.051, 0.21]
    with pytest.raises(DeviceError, match=r"eager took 0\.22 ms beside the candidate and 0\.051 ms in another process"):
        revise(on_gpu, stored, 0.22)
    assert revise(on_gpu, stored, 0.05) == (stored, None)
    assert revise(on_gpu, stored, 0.22)[0].eager_ms == 0.21, "it was the baseline that had been read too fast"
