"""Which (task, sample) comes next, and which finished trajectories make the next batch.

Tickets are numbered in one fixed, seeded order a stage, so a run that was interrupted continues with exactly the
tickets that are missing. A ticket is

    waiting ──dispatch──► in flight ──accept──► ready ──take──► in a batch manifest
                             │ our own failure
                             └──► waiting again (same ticket, counted)

Bound: a trajectory whose oldest token was sampled by version v must be taken by the update at version v + s, with s
the max_staleness. Two rules keep that. `dispatch` hands out tickets below (u + s + 1) * B only, with u updates of B
trajectories finished (their weights published), so at most (s + 1) * B are outstanding. `take` picks the earliest
deadlines among the ready ones, and waits where what stays behind would not fit: at most k * B outstanding tickets may
be due within the next k updates. Once everything in flight has arrived the earliest deadlines always fit, so waiting
ends. s = 0 is synchronous training: batch u is tickets uB … uB + B - 1.
"""

from __future__ import annotations

import random
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from sandbox.types import Task


@dataclass(frozen=True, slots=True, kw_only=True)
class Ticket:
    """One rollout to be made."""

    number: int
    trajectory_id: str
    task: Task
    sample_index: int
    """How many earlier tickets of the stage have the same task."""
    seed: int


class TicketOrder:
    """The endless, seeded order of (task, sample) of one stage: pass after pass over all tasks, each one shuffled."""

    def __init__(self, tasks: Sequence[Task], *, stage: str, seed: int) -> None:
        if not tasks:
            raise ValueError(f"stage {stage}: there are no tasks to draw from; check tasks.train and tasks.heldout")
        self._tasks, self._stage, self._seed = list(tasks), stage, seed

    def ticket(self, number: int) -> Ticket:
        sample_index, place = divmod(number, len(self._tasks))
        order = list(range(len(self._tasks)))
        random.Random(f"{self._seed}/{self._stage}/{sample_index}").shuffle(order)
        return Ticket(
            number=number,
            trajectory_id=f"{self._stage}-{number:06d}",
            task=self._tasks[order[place]],
            sample_index=sample_index,
            seed=random.Random(f"{self._seed}/{self._stage}/{number}").getrandbits(31),
        )


def ticket_number(trajectory_id: str) -> int:
    return int(trajectory_id.rpartition("-")[2])


@dataclass
class TicketWindow:
    """Bookkeeping of one stage: pure, no clock, no processes. `limit` is the number of tickets the stage needs."""

    batch_size: int
    max_staleness: int
    limit: int
    updates: int = 0
    """Batches taken in this stage."""
    finished_updates: int = 0
    """Those whose new weights the engines have."""
    next_number: int = 0
    waiting: list[int] = field(default_factory=list)
    """Dispatched before, to be dispatched again."""
    in_flight: dict[int, int] = field(default_factory=dict)
    """Ticket -> learner version when it was dispatched: no token of it is older."""
    ready: dict[int, int] = field(default_factory=dict)
    """Ticket -> oldest version that sampled a token of it, in order of arrival."""
    dropped: int = 0
    """Accepted ones that cannot be trained on (counted in the store); one more ticket is drawn for each."""

    @classmethod
    def resumed(
        cls,
        *,
        batch_size: int,
        max_staleness: int,
        limit: int,
        updates: int,
        taken: Iterable[int],
        ready: dict[int, int],
        dropped: Iterable[int] = (),
    ) -> TicketWindow:
        """From what the store holds: tickets in manifests, accepted ones in none with their oldest versions, drops."""
        dropped = set(dropped)
        known = set(taken) | set(ready) | dropped
        next_number = max(known, default=-1) + 1
        return cls(
            batch_size=batch_size,
            max_staleness=max_staleness,
            limit=limit,
            updates=updates,
            finished_updates=updates,
            next_number=next_number,
            waiting=[number for number in range(next_number) if number not in known],
            ready=dict(ready),
            dropped=len(dropped),
        )

    def dispatch(self, version: int) -> int | None:
        """The next ticket to roll out, or None when the window is full."""
        bound = min(self.limit, (self.finished_updates + self.max_staleness + 1) * self.batch_size) + self.dropped
        if self.waiting:
            number = self.waiting.pop(0)
        elif self.next_number < bound:
            number = self.next_number
            self.next_number += 1
        else:
            return None
        self.in_flight[number] = version
        return number

    def accept(self, number: int, oldest_version: int) -> None:
        del self.in_flight[number]
        self.ready[number] = oldest_version

    def give_back(self, number: int) -> None:
        """Our own failure: the ticket is rolled out again."""
        del self.in_flight[number]
        self.waiting.append(number)
        self.waiting.sort()

    def drop(self, number: int) -> None:
        del self.in_flight[number]
        self.dropped += 1

    def finish_update(self) -> None:
        """The update on the batch taken last is done and its weights are published: the window moves on."""
        self.finished_updates += 1

    @property
    def complete(self) -> bool:
        """Every ticket of the stage was accepted (or dropped and replaced)."""
        return not self.waiting and not self.in_flight and self.next_number >= self.limit + self.dropped

    def take(self, version: int) -> list[int] | None:
        """The next batch in ticket order, or None while it has to wait.

        `version` is the learner's; the update on the batch taken before must be finished.
        """
        if self.updates != self.finished_updates:
            raise RuntimeError("take: the update on the previous batch is not finished")
        if len(self.ready) < self.batch_size:
            return None
        batch = sorted(self.ready, key=self.ready.__getitem__)[: self.batch_size]
        chosen = set(batch)
        left = [oldest for number, oldest in (self.ready | self.in_flight).items() if number not in chosen]
        for updates_ahead in range(self.max_staleness + 1):
            due = sum(oldest + self.max_staleness <= version + updates_ahead for oldest in left)
            if due > updates_ahead * self.batch_size:
                return None
        batch.sort()
        for number in batch:
            del self.ready[number]
        self.updates += 1
        return batch
