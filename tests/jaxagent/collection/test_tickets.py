"""The staleness bound, and that no ticket is lost or taken twice, under random orders of events."""

from __future__ import annotations

import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from jaxagent.collection.tickets import TicketOrder, TicketWindow, ticket_number
from sandbox.types import Task


def tasks(count: int) -> list[Task]:
    return [Task(task_id=f"t{i}", code="") for i in range(count)]


def test_ticket_order_draws_every_task_once_a_pass_and_is_a_function_of_the_seed():
    order = TicketOrder(tasks(5), stage="s", seed=3)
    first = [order.ticket(i) for i in range(15)]
    for start in (0, 5, 10):
        assert {t.task.task_id for t in first[start : start + 5]} == {f"t{i}" for i in range(5)}
    assert [t.sample_index for t in first] == [0] * 5 + [1] * 5 + [2] * 5
    again = TicketOrder(tasks(5), stage="s", seed=3)
    assert [again.ticket(i) for i in range(15)] == first
    other = TicketOrder(tasks(5), stage="s", seed=4)
    assert [other.ticket(i).task for i in range(15)] != [t.task for t in first]
    assert len({t.seed for t in first}) == 15
    assert [ticket_number(t.trajectory_id) for t in first] == list(range(15))


def test_a_stage_without_tasks_says_which_key_to_check():
    with pytest.raises(ValueError, match=r"stage s: .*tasks\.train"):
        TicketOrder([], stage="s", seed=0)


@settings(max_examples=200, deadline=None)
@given(
    seed=st.integers(0, 10**6),
    batch=st.integers(1, 5),
    staleness=st.integers(0, 4),
    updates=st.integers(1, 6),
    failure_rate=st.sampled_from([0.0, 0.2]),
    drop_rate=st.sampled_from([0.0, 0.1]),
)
def test_every_batch_keeps_the_staleness_bound_and_every_ticket_is_taken_once(
    seed, batch, staleness, updates, failure_rate, drop_rate
):
    rng = random.Random(seed)
    window = TicketWindow(batch_size=batch, max_staleness=staleness, limit=batch * updates)
    taken: list[int] = []
    dropped: set[int] = set()
    sampled_by: dict[int, int] = {}
    version = 0
    for _ in range(10_000):
        while (number := window.dispatch(version)) is not None:
            sampled_by[number] = version
        if window.in_flight and rng.random() < 0.8:
            number = rng.choice(list(window.in_flight))
            fate = rng.random()
            if fate < failure_rate:
                window.give_back(number)
            elif fate < failure_rate + drop_rate:
                window.drop(number)
                dropped.add(number)
            else:
                window.accept(number, sampled_by[number])
        numbers = window.take(version)
        if numbers is not None:
            assert len(numbers) == batch
            assert all(version - sampled_by[number] <= staleness for number in numbers)
            taken += numbers
            while rng.random() < 0.5 and (number := window.dispatch(version)) is not None:
                sampled_by[number] = version  # rollouts go on while the learner works
            version += 1
            window.finish_update()
            if version == updates:
                break
    assert version == updates, "the window must never come to a halt"
    assert len(taken) == len(set(taken)) == batch * updates
    assert set(taken) | dropped == set(range(window.next_number))
    assert window.complete


def test_without_staleness_batches_are_the_tickets_in_order():
    window = TicketWindow(batch_size=3, max_staleness=0, limit=9)
    for update in range(3):
        numbers = []
        while (number := window.dispatch(update)) is not None:
            numbers.append(number)
        for number in reversed(numbers):
            assert window.take(update) is None
            window.accept(number, update)
        assert window.take(update) == [3 * update, 3 * update + 1, 3 * update + 2]
        assert window.dispatch(update) is None, "the next batch has to wait for the new weights"
        window.finish_update()
    assert window.complete


def test_a_resumed_window_rolls_out_what_was_in_flight_and_keeps_what_was_ready():
    window = TicketWindow.resumed(
        batch_size=2, max_staleness=1, limit=8, updates=1, taken=[0, 2], ready={3: 0}, dropped=[4]
    )
    dispatched = []
    while (number := window.dispatch(1)) is not None:
        dispatched.append(number)
    assert dispatched[0] == 1, "ticket 1 was in flight when the run died"
    assert dispatched == [1, 5, 6], "the bound is (1 + 1 + 1) * 2 tickets, and one more for the dropped one"
