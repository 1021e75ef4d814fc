"""A discrete-event simulation of rollouts and updates in which nothing costs time but replies and the learner.

    slot: dispatch ──turn seconds──► accept ──┐
                                              ├─► take ──learner seconds──► finish_update ──► dispatch …
    slot: dispatch ──turn seconds──► accept ──┘

The tickets are those of training (jaxagent.tickets), the times those that the real run's engine sleeps. So the result
is the bound that real actors are measured against: what is missing there is their own cost.
"""

from __future__ import annotations

import heapq
from dataclasses import dataclass

from jaxagent.collection.tickets import TicketWindow
from rollout.scripted_load import TurnLoad

STAGE = "load"


def load_id(number: int) -> str:
    """The trajectory id of a ticket of the load, which its times are drawn from."""
    return f"{STAGE}-{number:06d}"


@dataclass(frozen=True, slots=True, kw_only=True)
class FlowPlan:
    """`updates` batches of `batch_size` trajectories, rolled out by `slots` at a time."""

    load: TurnLoad
    slots: int
    batch_size: int
    updates: int
    max_staleness: int
    learner_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class FlowResult:
    seconds: float
    staleness: list[int]
    """Of each trajectory when it was taken: learner's version less the oldest version that sampled a token."""
    busy: float
    """Part of the slots' time in which they rolled out."""

    @property
    def trajectories_per_hour(self) -> float:
        return len(self.staleness) / self.seconds * 3600


def simulate(plan: FlowPlan) -> FlowResult:
    """Plays the plan to the end of its last update."""
    window = TicketWindow(
        batch_size=plan.batch_size, max_staleness=plan.max_staleness, limit=plan.batch_size * plan.updates
    )
    now, version, busy_s, learner_free = 0.0, 0, 0.0, True
    events: list[tuple[float, int, int]] = []  # (time, ticket or -1 for the learner, version at its start)
    running = 0
    staleness: list[int] = []
    while True:
        while running < plan.slots and (number := window.dispatch(version)) is not None:
            seconds = sum(plan.load.turn_seconds(load_id(number)))
            heapq.heappush(events, (now + seconds, number, version))
            busy_s, running = busy_s + seconds, running + 1
        if learner_free and window.updates < plan.updates:
            oldest = dict(window.ready)
            batch = window.take(version)
            if batch is not None:
                staleness += [version - oldest[number] for number in batch]
                heapq.heappush(events, (now + plan.learner_s, -1, version))
                learner_free = False
        if not events:
            return FlowResult(seconds=now, staleness=staleness, busy=busy_s / (now * plan.slots))
        now, number, started = heapq.heappop(events)
        if number < 0:
            version, learner_free = version + 1, True
            window.finish_update()
        else:
            window.accept(number, started)
            running -= 1
