"""Evaluation of one policy on one set of tasks: roll out, judge, keep the best of each trajectory, summarize.

Every sample goes to a trajectory store of its own under the evaluation's folder, so an interrupted evaluation
continues with the samples that are missing.
"""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable, Sequence
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


async def evaluate(
    folder: Path,
    *,
    label: str,
    tasks: Sequence[Task],
    samples_per_task: int,
    rollout: Callable[[Ticket], Awaitable[Trajectory]],
    capacity: int,
    max_retries: int,
    store_config: StoreConfig,
    seed: int,
    progress: Progress,
) -> EvaluationResult:
    """Evaluates into `folder`, or reads what a finished evaluation left there."""
    result_path = folder / "result.json"
    if result_path.exists():
        return EvaluationResult.from_json(json.loads(result_path.read_text()))
    folder.mkdir(parents=True, exist_ok=True)
    with TrajectoryStore(folder / "store", store_config) as store:
        await collect_samples(
            store,
            label=label,
            tasks=tasks,
            samples_per_task=samples_per_task,
            rollout=rollout,
            capacity=capacity,
            max_retries=max_retries,
            seed=seed,
            progress=progress,
        )
        result = summarize(label, store.trajectories(), seed=seed)
    write_json(result_path, result.to_json())
    return result


async def collect_samples(
    store: TrajectoryStore,
    *,
    label: str,
    tasks: Sequence[Task],
    samples_per_task: int,
    rollout: Callable[[Ticket], Awaitable[Trajectory]],
    capacity: int,
    max_retries: int,
    seed: int,
    progress: Progress,
    on_accept: Callable[[Trajectory], None] = lambda _: None,
) -> None:
    """Rolls out the samples of every task that `store` does not hold yet; `on_accept` gets each that is stored."""
    total = len(tasks) * samples_per_task
    done = {ticket_number(trajectory_id): 0 for trajectory_id in store.ids()}
    window = TicketWindow.resumed(batch_size=total, max_staleness=0, limit=total, updates=0, taken=(), ready=done)
    with progress.counting(f"evaluation {label}", total, done=len(done)) as advance:

        def accept(trajectory: Trajectory) -> None:
            on_accept(trajectory)
            advance()

        collector = Collector(
            order=TicketOrder(tasks, stage=f"evaluation_{label}", seed=seed),
            window=window,
            store=store,
            stage=label,
            rollout=rollout,
            version=lambda: 0,
            sampling_version=lambda: 0,
            capacity=capacity,
            max_retries=max_retries,
            on_accept=accept,
        )
        async with collector:
            await collector.complete()
