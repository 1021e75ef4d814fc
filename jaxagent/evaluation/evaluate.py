"""Evaluation of one policy on one set of tasks: roll out, judge, keep the best of each trajectory, summarize.

Every sample goes to a trajectory store of its own under the evaluation's folder, so an interrupted evaluation
continues with the samples that are missing.
"""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from jaxagent.collection.collector import Collector
from jaxagent.collection.tickets import Ticket, TicketOrder, TicketWindow, ticket_number
from jaxagent.evaluation.results import EvaluationResult, summarize
from jaxagent.files.write import write_json
from jaxagent.run.progress import Progress
from rollout.config import StoreConfig
from rollout.store import TrajectoryStore
from rollout.types import Trajectory
from sandbox.types import Task


@dataclass(frozen=True, slots=True, kw_only=True)
class Sampling:
    """Which samples an evaluation takes, and how."""

    label: str
    tasks: Sequence[Task]
    samples_per_task: int
    seed: int
    """Of the order of tickets, and of the intervals."""
    rollout: Callable[[Ticket], Awaitable[Trajectory]]
    capacity: int
    """Rollouts under way at once."""
    max_retries: int


async def evaluate(
    folder: Path, sampling: Sampling, *, store_config: StoreConfig, progress: Progress
) -> EvaluationResult:
    """Evaluates into `folder`, or reads what a finished evaluation left there."""
    result_path = folder / "result.json"
    if result_path.exists():
        return EvaluationResult.from_json(json.loads(result_path.read_text()))
    folder.mkdir(parents=True, exist_ok=True)
    with TrajectoryStore(folder / "store", store_config) as store:
        await collect_samples(store, sampling, progress=progress)
        result = summarize(sampling.label, store.trajectories(), seed=sampling.seed)
    write_json(result_path, result.to_json())
    return result


async def collect_samples(
    store: TrajectoryStore,
    sampling: Sampling,
    *,
    progress: Progress,
    on_accept: Callable[[Trajectory], None] = lambda _: None,
) -> None:
    """Rolls out the samples of every task that `store` does not hold yet; `on_accept` gets each that is stored."""
    total = len(sampling.tasks) * sampling.samples_per_task
    done = {ticket_number(trajectory_id): 0 for trajectory_id in store.ids()}
    window = TicketWindow.resumed(batch_size=total, max_staleness=0, limit=total, updates=0, taken=(), ready=done)
    with progress.counting(f"evaluation {sampling.label}", total, done=len(done)) as advance:

        def accept(trajectory: Trajectory) -> None:
            on_accept(trajectory)
            advance()

        collector = Collector(
            order=TicketOrder(sampling.tasks, stage=f"evaluation_{sampling.label}", seed=sampling.seed),
            window=window,
            store=store,
            stage=sampling.label,
            rollout=sampling.rollout,
            version=lambda: 0,
            sampling_version=lambda: 0,
            capacity=sampling.capacity,
            max_retries=sampling.max_retries,
            on_accept=accept,
        )
        async with collector:
            await collector.complete()
