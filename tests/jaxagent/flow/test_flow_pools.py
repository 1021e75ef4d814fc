from __future__ import annotations

import math

import pytest

from jaxagent.flow.pools import Pools, ServiceTimes, demand, simulate_pools, split

TIMES = ServiceTimes(turns=20, sigma=0.0)


def test_a_step_takes_what_its_scarcest_pool_is_asked_for() -> None:
    pools = Pools(engines=4, profilers=1, learners=8, compile_cores=400, batch_size=32, max_staleness=2)
    report = simulate_pools(TIMES, pools, steps=4)
    bound = demand(TIMES, 32)["profilers"] / pools.profilers
    assert report.step_s == pytest.approx(bound, rel=0.1)
    assert report.profiler_busy > 0.9 and report.profiler_wait_s > TIMES.verify_s
    assert report.compile_wait_s == 0.0


def test_with_room_everywhere_a_synchronous_step_is_one_trajectory_and_the_learner() -> None:
    times = TIMES.model_copy(update={"compile_share": 0.0, "verify_share": 0.0, "profile_share": 0.0})
    pools = Pools(engines=8, profilers=64, learners=1, compile_cores=1, batch_size=8, max_staleness=0)
    turn_s = times.reply_tokens * (times.engine_base_s + times.engine_slope_s) + times.shell_s
    expected = times.turns * turn_s + times.profile_s + demand(times, 8)["learners"]
    assert simulate_pools(times, pools).step_s == pytest.approx(expected)


def test_a_cluster_is_split_by_demand_and_every_pool_gets_one() -> None:
    times = ServiceTimes()
    needs = demand(times, 1024)
    for gpus in (3, 8, 100):
        pools = split(times, gpus)
        assert pools.gpus == gpus and min(pools.engines, pools.profilers, pools.learners) >= 1
    names = ("engines", "profilers", "learners")
    largest = split(times, 1024)
    loads = [needs[name] / getattr(largest, name) for name in names]
    assert max(loads) / min(loads) < 1.2
    assert largest.compile_cores == math.ceil(1.2 * needs["compile_cores"] / max(loads))
    with pytest.raises(ValueError, match="gpus=2: .* at least 3"):
        split(times, 2)


def test_the_same_seed_gives_the_same_report_and_more_gpus_a_shorter_step() -> None:
    times = ServiceTimes(turns=30)
    reports = [simulate_pools(times, split(times, gpus, batch_size=64), seed=1) for gpus in (8, 8, 16)]
    assert reports[0] == reports[1]
    assert reports[2].step_s < reports[0].step_s
