"""What a run's files prove: every ticket trained on once, none lost, each batch what an undisturbed run would have."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path

from jaxagent.collection.tickets import TicketOrder, ticket_number
from jaxagent.commands.preflight import check_inputs
from jaxagent.commands.prompt_lengths import fitting_tasks
from jaxagent.config.run import RunConfig
from jaxagent.config.stages import PPOStage, SampleStage
from jaxagent.run.folder import RunFolder, open_run, starting_model
from jaxagent.run.metrics_log import read_metrics
from rollout.store import TrajectoryStore
from sandbox.types import Task

COUNTED = ("rollout_retries", "rollout_drops", "engine_restarts", "replayed")


@dataclass(frozen=True, slots=True, kw_only=True)
class Proof:
    """`problems` is empty where the run kept everything."""

    problems: list[str] = field(default_factory=list)
    trajectories: int = 0
    records: int = 0
    """In the store, every byte of them checked."""
    counts: dict[str, int] = field(default_factory=dict)
    """Retries, drops, restarts and replayed updates, as the run's metrics counted them."""


def prove(root: Path) -> Proof:
    """Reads a finished run and nothing else. Raises ConfigError, CorruptStoreError."""
    folder, config = open_run(root)
    tasks, heldout = check_inputs(config)
    tasks = fitting_tasks(config, tasks, heldout, model_dir=starting_model(config, folder), say=lambda _: None)
    problems: list[str] = []
    with TrajectoryStore(folder.store, writable=False) as store:
        records = store.verify()
        for stage in config.stages:
            if isinstance(stage, SampleStage):
                problems += _tickets(store, config, stage.name, tasks, stage.trajectories)
            elif isinstance(stage, PPOStage):
                problems += _tickets(store, config, stage.name, tasks, stage.updates * stage.trajectories_per_update)
                problems += _batches(store, config, stage)
        num = len(store)
    problems += _updates_logged(folder, config)
    counts: Counter[str] = Counter()
    for record in read_metrics(folder.metrics):
        for name in COUNTED:
            counts[name] += int(record.get(name, 0))
    return Proof(problems=problems, trajectories=num, records=records, counts=dict(counts))


def _tickets(store: TrajectoryStore, config: RunConfig, stage: str, tasks: list[Task], needed: int) -> list[str]:
    """The stage holds the first tickets of its order, one more for each drop: the multiset of any complete run."""
    order = TicketOrder(tasks, stage=stage, seed=config.seed)
    expected = [order.ticket(number) for number in range(needed + len(store.dropped(stage)))]
    want = Counter((ticket.trajectory_id, ticket.task.task_id, ticket.sample_index) for ticket in expected)
    have = Counter((t.trajectory_id, t.task_id, t.sample_index) for t in store.trajectories(stage))
    lost, extra = want - have, have - want
    found = [f"{stage}: {len(lost)} of {needed} trajectories are missing: {sorted(lost)[:3]}"] if lost else []
    return found + ([f"{stage}: {len(extra)} trajectories too many: {sorted(extra)[:3]}"] if extra else [])


def _batches(store: TrajectoryStore, config: RunConfig, stage: PPOStage) -> list[str]:
    """One manifest an update, nothing in two of them, nothing left over, every token within the bound."""
    found: list[str] = []
    manifests = sorted(store.manifests(stage.name), key=lambda manifest: manifest.update)
    if [manifest.update for manifest in manifests] != list(range(stage.updates)):
        found.append(f"{stage.name}: manifests of updates {[m.update for m in manifests]}, not of {stage.updates}")
    audit = store.audit(stage.name)
    found += [f"{stage.name}: in two manifests: {audit.twice[:3]}"] if audit.twice else []
    found += [f"{stage.name}: in no manifest and not dropped: {audit.waiting[:3]}"] if audit.waiting else []
    bound, size = config.rollout.max_staleness, stage.trajectories_per_update
    for manifest in manifests:
        oldest = min(store.get(name).oldest_version for name in manifest.trajectory_ids)
        if manifest.policy_version - oldest > bound:
            found.append(f"{stage.name} update {manifest.update}: a token of version {oldest} is staler than {bound}")
        start = manifest.update * size
        numbers = sorted(map(ticket_number, manifest.trajectory_ids))
        if bound == 0 and not audit.dropped and numbers != list(range(start, start + size)):
            found.append(
                f"{stage.name} update {manifest.update}: tickets {numbers}, a synchronous run takes {start} on"
            )
    return found


def _updates_logged(folder: RunFolder, config: RunConfig) -> list[str]:
    seen = Counter((record["stage"], record["update"]) for record in read_metrics(folder.metrics))
    twice = [key for key, count in seen.items() if count > 1]
    found = [f"metrics.jsonl: logged twice: {twice[:3]}"] if twice else []
    for stage in config.stages:
        if isinstance(stage, PPOStage) and any((stage.name, u) not in seen for u in range(stage.updates)):
            found.append(f"metrics.jsonl: updates of {stage.name} are missing")
    return found
