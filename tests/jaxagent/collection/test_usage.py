"""Shares of the pools that were in use between two questions."""

from __future__ import annotations

import asyncio

import pytest
import ray

from jaxagent.collection.usage import UsageMeter
from sandbox.types import DeviceError


class Judge:
    """Totals as a judge tells them."""

    def __init__(self, *totals: float | None) -> None:
        self._totals = list(totals)

    async def stats(self) -> dict[str, float]:
        total = self._totals.pop(0)
        if total is None:
            raise DeviceError("the judge was lost")
        return {"device_seconds": total}


async def test_shares_are_of_the_time_since_the_last_question_and_a_restarted_pool_has_none():
    meter, judge = UsageMeter(num_jobs=2, engine_sequences=8, rollouts=4), Judge(100.0, 100.1, 0.0, None, 0.0)
    assert set(await meter.take(judge, [])) == set(), "the first question only begins the count"
    with meter.under_way.use():
        await asyncio.sleep(0.2)
        first = await meter.take(judge, [])
    assert first["rollout_use"] == pytest.approx(1 / 4, rel=0.05)
    assert 0.1 < first["profiler_use"] <= 0.25 and first["engine_use"] == first["engine_tokens_per_s"] == 0
    assert "profiler_use" not in await meter.take(judge, []), "its total fell: it was restarted"
    assert "profiler_use" not in await meter.take(judge, [])
    assert "profiler_use" not in await meter.take(judge, [])


@pytest.mark.ray
async def test_engines_tell_what_they_did_and_a_dead_one_costs_the_figure_alone():
    @ray.remote
    class Engine:
        def __init__(self) -> None:
            self._told = 0

        async def usage(self) -> tuple[float, int]:
            self._told += 1
            return 0.0 + self._told, 10 * self._told

    ray.init(address="local", num_cpus=1, include_dashboard=False, log_to_driver=False)
    try:
        meter, engines = UsageMeter(num_jobs=1, engine_sequences=4, rollouts=1), [Engine.remote(), Engine.remote()]
        await meter.take(Judge(0.0), engines)
        figures = await meter.take(Judge(0.0), engines)
        assert figures["engine_tokens_per_s"] == pytest.approx(40 * figures["engine_use"])
        ray.kill(engines[0])  # returns before the engine is gone
        with pytest.raises(ray.exceptions.RayActorError):
            while True:
                await engines[0].usage.remote()
        assert "engine_use" not in await meter.take(Judge(0.0), engines)
    finally:
        ray.shutdown()
