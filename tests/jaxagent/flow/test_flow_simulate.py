from __future__ import annotations

import numpy as np
import pytest

from jaxagent.flow.simulate import FlowPlan, load_id, simulate
from rollout.scripted_load import TurnLoad


def plan(**changes) -> FlowPlan:
    base = {"load": TurnLoad(), "slots": 64, "batch_size": 64, "updates": 40, "max_staleness": 0, "learner_s": 1.94}
    return FlowPlan(**(base | changes))


def synchronous_seconds(p: FlowPlan) -> float:
    """With a slot for every trajectory a synchronous update takes its longest trajectory, then the learner."""
    times = [sum(p.load.turn_seconds(load_id(i))) for i in range(p.batch_size * p.updates)]
    batches = np.array(times).reshape(p.updates, p.batch_size)
    return float(batches.max(axis=1).sum() + p.updates * p.learner_s)


def test_synchronous_updates_wait_for_the_longest_trajectory() -> None:
    result = simulate(plan())
    assert result.seconds == pytest.approx(synchronous_seconds(plan()))
    assert set(result.staleness) == {0} and len(result.staleness) == 40 * 64


@pytest.mark.parametrize("max_staleness", [1, 2, 4])
def test_every_trajectory_is_used_within_the_bound(max_staleness: int) -> None:
    result = simulate(plan(max_staleness=max_staleness))
    assert len(result.staleness) == 40 * 64
    assert min(result.staleness) >= 0 and max(result.staleness) <= max_staleness


def test_staleness_buys_the_throughput_that_the_long_tail_costs() -> None:
    rates = {s: simulate(plan(max_staleness=s, updates=100)).trajectories_per_hour for s in (0, 1, 4)}
    assert rates[1] / rates[0] == pytest.approx(1.9, abs=0.1)
    assert rates[4] / rates[0] == pytest.approx(4.0, abs=0.5)


def test_with_equal_times_and_an_instant_learner_all_slots_are_busy() -> None:
    load = TurnLoad(sigma=0, fixed_turns=True, max_turns=4, median_turn_s=0.5)
    result = simulate(plan(load=load, learner_s=0.0))
    assert result.busy == pytest.approx(1.0) and result.seconds == pytest.approx(40 * 2.0)


def test_the_load_is_what_it_says_and_the_same_for_the_same_id() -> None:
    load = TurnLoad()
    draws = [load.turn_seconds(load_id(i)) for i in range(20_000)]
    lengths = np.array([len(draw) for draw in draws])
    seconds = np.concatenate(draws)
    assert lengths.max() == 30 and lengths.min() == 1
    assert lengths.mean() == pytest.approx(8 * (1 - (7 / 8) ** 30), rel=0.03)
    assert np.median(seconds) == pytest.approx(0.3, rel=0.03)
    assert np.log(seconds).std() == pytest.approx(1.0, rel=0.03)
    assert np.mean([sum(draw) for draw in draws]) == pytest.approx(load.mean_trajectory_s, rel=0.03)
    assert TurnLoad().turn_seconds("a") == load.turn_seconds("a") != TurnLoad(seed=1).turn_seconds("a")
