"""The collector over a real store: batches, repeats after our own trouble, drops, and how it stops."""

from __future__ import annotations

import asyncio

import numpy as np
import pytest

from jaxagent.collection import collector as collector_module
from jaxagent.collection.collector import Collector, UnfitTrajectoriesError
from jaxagent.collection.tickets import Ticket, TicketOrder, TicketWindow
from rollout.store import TrajectoryStore
from rollout.types import RolloutError, StopReason, Trajectory, Turn
from sandbox.types import Judgement, Outcome, Task


def trajectory(ticket: Ticket, version: int) -> Trajectory:
    tokens = np.arange(4, dtype=np.int32)
    turn = Turn(
        prompt_token_ids=tokens,
        token_ids=tokens,
        logprobs=np.zeros(4, np.float32),
        policy_versions=np.full(4, version, np.int32),
        text="answer",
    )
    return Trajectory(
        trajectory_id=ticket.trajectory_id,
        task_id=ticket.task.task_id,
        sample_index=ticket.sample_index,
        stage="s",
        seed=ticket.seed,
        turns=[turn],
        judgement=Judgement(outcome=Outcome.WRONG, reward=-1.0, message=""),
        stop_reason=StopReason.FINISHED,
    )


class Flow:
    """One stage of three updates of two trajectories; `fate(number, attempt)` may raise in place of a rollout."""

    def __init__(self, store: TrajectoryStore, fate=lambda number, attempt: None, screen=lambda t: None) -> None:
        self.version = 0
        self.attempts: dict[int, int] = {}
        self._fate = fate
        self.collector = Collector(
            order=TicketOrder([Task(task_id="a", code=""), Task(task_id="b", code="")], stage="s", seed=0),
            window=TicketWindow(batch_size=2, max_staleness=1, limit=6),
            store=store,
            stage="s",
            rollout=self.rollout,
            version=lambda: self.version,
            sampling_version=lambda: self.version,
            capacity=3,
            max_retries=2,
            max_drops_in_a_row=5,
            screen=screen,
        )

    async def rollout(self, ticket: Ticket) -> Trajectory:
        version = self.version
        attempt = self.attempts[ticket.number] = self.attempts.get(ticket.number, 0) + 1
        await asyncio.sleep(0.001 * (ticket.number % 3))
        self._fate(ticket.number, attempt)
        return trajectory(ticket, version)

    async def run(self) -> list[list[str]]:
        batches = []
        async with self.collector as collector:
            for _ in range(3):
                batches.append([t.trajectory_id for t in await collector.batch()])
                self.version += 1
                await collector.update_finished()
        return batches


@pytest.fixture(autouse=True)
def short_delays(monkeypatch):
    monkeypatch.setattr(collector_module, "RETRY_DELAY_S", 0.001)


async def test_every_ticket_comes_in_one_batch_and_each_batch_has_its_manifest(tmp_path):
    with TrajectoryStore(tmp_path / "store") as store:
        batches = await Flow(store).run()
        assert sorted(name for batch in batches for name in batch) == [f"s-{i:06d}" for i in range(6)]
        assert [manifest.trajectory_ids for manifest in store.manifests("s")] == batches
        assert [manifest.policy_version for manifest in store.manifests("s")] == [0, 1, 2]


async def test_our_own_trouble_is_repeated_and_counted(tmp_path):
    def fate(number: int, attempt: int) -> None:
        if number in (1, 4) and attempt == 1:
            raise RolloutError("the engine went away")

    with TrajectoryStore(tmp_path / "store") as store:
        flow = Flow(store, fate)
        batches = await flow.run()
        assert len({name for batch in batches for name in batch}) == 6
        assert flow.attempts == {0: 1, 1: 2, 2: 1, 3: 1, 4: 2, 5: 1}
        assert flow.collector.take_counts() == {"rollout_retries": 2, "rollout_drops": 0}
        assert flow.collector.take_counts() == {"rollout_retries": 0, "rollout_drops": 0}


async def test_trouble_that_does_not_end_stops_the_run_and_names_the_key(tmp_path):
    def fate(number: int, attempt: int) -> None:
        if number == 1:
            raise RolloutError("the engine went away")

    message = r"s-000001 .* failed 3 times, rollout\.max_retries=2.*went away"
    with TrajectoryStore(tmp_path / "store") as store, pytest.raises(RolloutError, match=message):
        await Flow(store, fate).run()


async def test_a_bug_in_a_rollout_reaches_whoever_waits_for_a_batch(tmp_path):
    def fate(number: int, attempt: int) -> None:
        if number == 0:
            raise ZeroDivisionError("bug")

    with TrajectoryStore(tmp_path / "store") as store, pytest.raises(ZeroDivisionError):
        await asyncio.wait_for(Flow(store, fate).run(), 10)


async def test_what_cannot_be_trained_on_is_dropped_with_its_reason_and_replaced(tmp_path):
    with TrajectoryStore(tmp_path / "store") as store:
        flow = Flow(store, screen=lambda t: "prefix broken" if t.trajectory_id == "s-000002" else None)
        batches = await flow.run()
        taken = sorted(name for batch in batches for name in batch)
        assert taken == ["s-000000", "s-000001", "s-000003", "s-000004", "s-000005", "s-000006"]
        assert store.dropped("s") == {"s-000002": "prefix broken"}
        audit = store.audit("s")
        assert (audit.accepted, audit.trained, audit.dropped) == (7, 6, 1)
        assert not audit.twice and not audit.waiting
        assert flow.collector.take_counts() == {"rollout_retries": 0, "rollout_drops": 1}


async def test_drops_without_end_stop_the_run_with_the_last_reason(tmp_path):
    def screen(t: Trajectory) -> str | None:
        return None if t.trajectory_id == "s-000000" else f"no good: {t.trajectory_id}"

    message = r"stage s: 5 trajectories in a row .*max_drops_in_a_row=5.*s-\d+ \(task [ab]\): no good: s-\d+"
    with TrajectoryStore(tmp_path / "store") as store:
        with pytest.raises(UnfitTrajectoriesError, match=message):
            await asyncio.wait_for(Flow(store, screen=screen).run(), 20)
        assert len(store.dropped("s")) >= 5


async def test_drops_with_fit_trajectories_in_between_do_not_stop_the_run(tmp_path):
    def screen(t: Trajectory) -> str | None:
        return "odd" if int(t.trajectory_id[-6:]) % 2 else None

    with TrajectoryStore(tmp_path / "store") as store:
        batches = await Flow(store, screen=screen).run()
        assert sum(len(batch) for batch in batches) == 6
        assert len(store.dropped("s")) >= 5, "more drops than the bound, not in a row"
