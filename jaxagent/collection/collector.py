"""Keeps rollouts of one stage going and hands out batches of accepted trajectories.

    fill: window has room ──► rollout(ticket) ──► store.append ──► ready    waits for a free slot, or room in the window
    batch: enough ready   ──► store.append_manifest ──► trajectories        waits for an acceptance; frees the window

Both run in the driver's event loop; an acceptance and a batch each wake the other.
"""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from collections.abc import Awaitable, Callable

from jaxagent.collection.tickets import Ticket, TicketOrder, TicketWindow, ticket_number
from rollout.store import TrajectoryStore
from rollout.types import RolloutError, Trajectory
from sandbox.types import DeviceError, SandboxUnavailableError

logger = logging.getLogger(__name__)

RETRY_DELAY_S, MAX_RETRY_DELAY_S = 1.0, 30.0


OUR_TROUBLE = (RolloutError, SandboxUnavailableError, DeviceError)
"""A rollout that ends with one of these failed through no fault of its policy: it is repeated, and never scored."""


class UnfitTrajectoriesError(RuntimeError):
    """Nothing that is rolled out can be trained on, and replacing it would go on for ever."""


class Collector:
    """Rolls out the tickets of one stage with at most `capacity` at a time.

    `rollout` makes one trajectory or raises one of OUR_TROUBLE; `version` is the learner's current policy version and
    `sampling_version` that of the engines, which lags behind while weights are on their way;
    `screen` says why a trajectory cannot be trained on: it is kept in the log, dropped from training, and replaced.
    """

    def __init__(
        self,
        *,
        order: TicketOrder,
        window: TicketWindow,
        store: TrajectoryStore,
        stage: str,
        rollout: Callable[[Ticket], Awaitable[Trajectory]],
        version: Callable[[], int],
        sampling_version: Callable[[], int],
        capacity: int,
        max_retries: int,
        max_drops_in_a_row: int = 64,
        screen: Callable[[Trajectory], str | None] = lambda _: None,
        on_accept: Callable[[Trajectory], None] = lambda _: None,
    ) -> None:
        self._order, self._window, self._store, self._stage = order, window, store, stage
        self._rollout, self._version, self._sampling_version = rollout, version, sampling_version
        self._capacity, self._max_retries, self._max_drops = capacity, max_retries, max_drops_in_a_row
        self._screen, self._on_accept = screen, on_accept
        self._failures: Counter[int] = Counter()
        self._changed = asyncio.Condition()
        self._running: set[asyncio.Task[None]] = set()
        self._filler: asyncio.Task[None] | None = None
        self._error: BaseException | None = None
        self._drops_in_a_row = 0
        self._counts: Counter[str] = Counter()

    async def __aenter__(self) -> Collector:
        self._filler = asyncio.create_task(self._fill())
        return self

    async def __aexit__(self, *_: object) -> None:
        tasks = [task for task in (self._filler, *self._running) if task is not None]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def batch(self) -> list[Trajectory]:
        """Waits for the next batch, appends its manifest, and returns its trajectories in ticket order."""
        async with self._changed:
            while True:
                self._raise_failure()
                version = self._version()
                update = self._window.updates
                numbers = self._window.take(version)
                if numbers is not None:
                    break
                await self._changed.wait()
            ids = [self._order.ticket(number).trajectory_id for number in numbers]
            self._store.append_manifest(self._stage, update, ids, version)
            self._changed.notify_all()
        return [self._store.get(trajectory_id) for trajectory_id in ids]

    def take_counts(self) -> dict[str, int]:
        """Retries after our own trouble, and dropped trajectories, since this was asked last."""
        counts, self._counts = self._counts, Counter()
        return {name: counts[name] for name in ("rollout_retries", "rollout_drops")}

    async def update_finished(self) -> None:
        """The engines have the weights of the update on the last batch: more tickets may go out."""
        async with self._changed:
            self._window.finish_update()
            self._changed.notify_all()

    async def complete(self) -> None:
        """Waits until every ticket of the stage was accepted."""
        async with self._changed:
            while not self._window.complete:
                self._raise_failure()
                await self._changed.wait()
            self._raise_failure()

    async def _fill(self) -> None:
        async with self._changed:
            while True:
                while len(self._running) < self._capacity:
                    number = self._window.dispatch(self._sampling_version())
                    if number is None:
                        break
                    task = asyncio.create_task(self._run(number))
                    self._running.add(task)
                    task.add_done_callback(self._running.discard)
                await self._changed.wait()

    async def _run(self, number: int) -> None:
        try:
            await self._accept(number, await self._rollout(self._order.ticket(number)))
        except OUR_TROUBLE as error:
            await self._retry(number, error)
        except Exception as error:  # a bug, or a full disk: stop the run, and say so where batch() is awaited
            await self._stop(error)

    async def _accept(self, number: int, trajectory: Trajectory) -> None:
        assert ticket_number(trajectory.trajectory_id) == number
        async with self._changed:
            self._store.append(trajectory)
            reason = self._screen(trajectory)
            if reason is None:
                self._drops_in_a_row = 0
                self._window.accept(number, trajectory.oldest_version)
                self._on_accept(trajectory)
            else:
                self._drop(number, trajectory, reason)
            self._wake()

    def _drop(self, number: int, trajectory: Trajectory, reason: str) -> None:
        self._store.drop(trajectory.trajectory_id, reason)
        self._window.drop(number)
        self._counts["rollout_drops"] += 1
        self._drops_in_a_row += 1
        if self._drops_in_a_row >= self._max_drops:
            self._error = self._error or UnfitTrajectoriesError(
                f"stage {self._stage}: {self._drops_in_a_row} trajectories in a row could not be trained on "
                f"(rollout.max_drops_in_a_row={self._max_drops}); the last, {trajectory.trajectory_id} (task "
                f"{trajectory.task_id}): {reason}. They are in the log; remove the cause, then resume the run"
            )

    async def _retry(self, number: int, error: Exception) -> None:
        self._failures[number] += 1
        self._counts["rollout_retries"] += 1
        ticket = self._order.ticket(number)
        logger.warning("rollout %s failed (%d): %s", ticket.trajectory_id, self._failures[number], error)
        if self._failures[number] > self._max_retries:
            await self._stop(
                RolloutError(
                    f"{ticket.trajectory_id} (task {ticket.task.task_id}) failed {self._failures[number]} times, "
                    f"rollout.max_retries={self._max_retries}; the last reason: {error}"
                )
            )
            return
        # What died is being restarted meanwhile: repeats in no time would only use up the retries.
        await asyncio.sleep(min(RETRY_DELAY_S * 2 ** (self._failures[number] - 1), MAX_RETRY_DELAY_S))
        async with self._changed:
            self._window.give_back(number)
            self._wake()

    async def _stop(self, error: Exception) -> None:
        async with self._changed:
            self._error = self._error or error
            self._wake()

    def _wake(self) -> None:
        """This task's slot is free from here on, and whoever waits looks again."""
        current = asyncio.current_task()
        if current is not None:
            self._running.discard(current)
        self._changed.notify_all()

    def _raise_failure(self) -> None:
        if self._error is not None:
            raise self._error
        if self._filler is not None and self._filler.done() and not self._filler.cancelled():
            self._filler.result()
