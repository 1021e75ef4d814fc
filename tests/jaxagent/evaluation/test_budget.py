"""What an evaluation may take: counted as a server bills, and no sample that has begun is thrown away."""

from __future__ import annotations

import asyncio
import dataclasses

import numpy as np
import pytest
from pydantic import ValidationError
from test_scorecard import judged, kernelbench_task, sample

from jaxagent.collection.tickets import Ticket
from jaxagent.config.run import BudgetConfig
from jaxagent.evaluation.budget import Budget, BudgetUsedUpError, spent
from jaxagent.evaluation.evaluate import Sampling, collect_samples
from jaxagent.run.progress_relay import ProgressRelay
from rollout.store import TrajectoryStore
from rollout.trajectory_codec import decode_trajectory, encode_trajectory
from rollout.types import RolloutError, Trajectory, Turn, Usage

PRICES = {"price_per_million_prompt_tokens": 2.0, "price_per_million_completion_tokens": 10.0}
TASKS = [kernelbench_task(1, f"{number}_Task") for number in range(1, 7)]


def turn(prompt: int, reply: int, *, usage: Usage | None = None) -> Turn:
    tokens = [np.zeros(n, np.int32) for n in (prompt, reply, reply)]
    return Turn(prompt_token_ids=tokens[0], token_ids=tokens[1], logprobs=tokens[2].astype(np.float32),
                policy_versions=tokens[1], text="", usage=usage)  # fmt: skip


def trajectory(ticket: Ticket | None = None, *, tokens: int = 100) -> Trajectory:
    usage = Usage(prompt_tokens=tokens - 20, completion_tokens=20)
    made = dataclasses.replace(sample(TASKS[0], 0, judged(2.0)), turns=[turn(0, 0, usage=usage)])
    if ticket is None:
        return made
    return dataclasses.replace(
        made, trajectory_id=ticket.trajectory_id, task_id=ticket.task.task_id, sample_index=ticket.sample_index
    )


def test_what_a_server_counted_is_billed_and_otherwise_the_tokens_themselves():
    mixed = dataclasses.replace(
        trajectory(), turns=[turn(0, 0, usage=Usage(prompt_tokens=500, completion_tokens=50)), turn(30, 5)]
    )
    found = spent([mixed, trajectory()], BudgetConfig(**PRICES))
    assert (found.samples, found.prompt_tokens, found.completion_tokens) == (2, 500 + 30 + 80, 50 + 5 + 20)
    assert found.cost == pytest.approx((610 * 2 + 75 * 10) / 1e6) and "cost 0.00" in found.sentence()
    assert spent([mixed], BudgetConfig()).cost is None


def test_usage_outlives_the_store_and_records_without_it_are_read():
    whole = trajectory()
    assert decode_trajectory(encode_trajectory(whole)).turns[0].usage == Usage(prompt_tokens=80, completion_tokens=20)
    none = dataclasses.replace(whole, turns=[turn(3, 2)])
    assert decode_trajectory(encode_trajectory(none)).turns[0].usage is None


def test_a_cost_needs_both_prices():
    for wrong in ({"max_cost": 1.0}, {"price_per_million_prompt_tokens": 1.0}):
        with pytest.raises(ValidationError, match="set both"):
            BudgetConfig(**wrong)


async def collected(store: TrajectoryStore, budget: Budget, *, capacity: int = 2, fail_first: bool = False) -> int:
    """How many rollouts began."""
    begun = 0

    async def rollout(ticket: Ticket) -> Trajectory:
        nonlocal begun
        begun += 1
        await asyncio.sleep(0.01 * (begun % capacity + 1))
        if fail_first and begun == 1:
            raise RolloutError("the server stumbled")
        return trajectory(ticket)

    sampling = Sampling(label="s", tasks=TASKS, samples_per_task=1, seed=0, rollout=budget.limited(rollout), capacity=capacity, max_retries=2)  # fmt: skip
    await collect_samples(store, sampling, progress=ProgressRelay(), on_accept=budget.accept)
    return begun


async def test_no_more_samples_begin_and_those_under_way_are_kept_and_a_larger_budget_goes_on(tmp_path):
    with TrajectoryStore(tmp_path / "store") as store:
        with pytest.raises(BudgetUsedUpError, match="evaluation.budget.max_tokens=250 is used up"):
            await collected(store, Budget(BudgetConfig(max_tokens=250), []))
        assert 3 <= len(store) <= 4, "the third sample ends it, and one that ran beside it is kept"
        there = len(store)
        with pytest.raises(BudgetUsedUpError):
            await collected(store, Budget(BudgetConfig(max_tokens=250), store.trajectories()))
        assert len(store) == there
        larger = BudgetConfig(max_cost=1.0, **PRICES)
        assert await collected(store, Budget(larger, store.trajectories())) == len(TASKS) - there
        assert len(store) == len(TASKS)


async def test_money_and_time_end_it_as_well(tmp_path):
    with TrajectoryStore(tmp_path / "money") as store, pytest.raises(BudgetUsedUpError, match="max_cost=0.0003"):
        await collected(store, Budget(BudgetConfig(max_cost=3e-4, **PRICES), []), capacity=1)
    with TrajectoryStore(tmp_path / "time") as store, pytest.raises(BudgetUsedUpError, match="max_seconds=0.03"):
        await collected(store, Budget(BudgetConfig(max_seconds=0.03), []), capacity=1)


async def test_a_rollout_that_failed_is_no_longer_under_way(tmp_path, monkeypatch):
    monkeypatch.setattr("jaxagent.collection.collector.RETRY_DELAY_S", 0.01)
    with TrajectoryStore(tmp_path / "store") as store:
        with pytest.raises(BudgetUsedUpError):
            await asyncio.wait_for(collected(store, Budget(BudgetConfig(max_tokens=100), []), fail_first=True), 20)
        assert len(store) >= 1
