"""Walks the stages of a run: samples, fine-tunes, pre-trains values, and runs PPO on live rollouts.

A stage is data (jaxagent.config); the functions here are what each kind of stage does. Every one continues where the
store and the last checkpoint say that it stopped, so a first start and a resume are the same code.
"""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from functools import partial
from typing import Any

from jaxagent.batches.sequences import screen
from jaxagent.collection.collector import Collector
from jaxagent.collection.tickets import TicketOrder, TicketWindow, ticket_number
from jaxagent.config.run import RunConfig
from jaxagent.config.stages import FineTuneStage, LessonStage, PPOStage, SampleStage, Stage, ValuePretrainStage
from jaxagent.learner.metrics import Metrics, outcome_metrics
from jaxagent.run.folder import RunFolder
from jaxagent.run.metrics_log import read_metrics
from jaxagent.schedule.replay import manifests_to_replay
from jaxagent.schedule.run import Run
from rollout.filters import reject_reason
from rollout.store import TrajectoryStore
from rollout.types import Trajectory


async def run_stage(run: Run, stage: Stage, first_update: int) -> None:
    """Runs one stage from `first_update` on: the number of its updates that the learner's state already holds."""
    if isinstance(stage, SampleStage):
        await sample(run, stage)
    elif isinstance(stage, LessonStage):
        await train_on_lessons(run, stage, first_update)
    elif isinstance(stage, FineTuneStage | ValuePretrainStage):
        await train_on_log(run, stage, first_update)
    else:
        await train_on_rollouts(run, stage, first_update)


def is_sampled(folder: RunFolder, store: TrajectoryStore, stage: Stage) -> bool:
    """Whether a sample stage is done and on record. It trains nothing, so no checkpoint says it."""
    if not isinstance(stage, SampleStage) or not sample_window(store, stage).complete:
        return False
    return any(record["stage"] == stage.name for record in read_metrics(folder.metrics))


def sample_window(store: TrajectoryStore, stage: SampleStage) -> TicketWindow:
    return resumed_window(store, stage.name, batch_size=stage.trajectories, max_staleness=0, updates=1)


async def sample(run: Run, stage: SampleStage) -> None:
    """Fills the log with `stage.trajectories` trajectories of a fixed policy."""
    window = sample_window(run.store, stage)
    if stage.policy == "actor" and not window.complete:
        await run.cluster.publish()
    await run.cluster.take_usage()
    started, before = time.monotonic(), len(window.ready)
    with run.progress.counting(stage.name, stage.trajectories, done=before) as advance:
        async with collector_of(run, stage, window, policy=stage.policy, on_accept=lambda _: advance()) as collector:
            await run.limit.wait(collector.complete())
    trajectories = list(run.store.trajectories(stage=stage.name))
    values = sample_metrics(trajectories) | {
        "seconds": time.monotonic() - started,
        **collector.take_counts(),
        **await run.cluster.take_usage(),
    }
    run.metrics.write(stage=stage.name, update=0, values=values)
    run.progress.update_line(stage.name, 0, 1, values)


async def train_on_lessons(run: Run, stage: LessonStage, first_update: int) -> None:
    """Pre-training of a scratch decoder on generated lessons, which the learner makes itself."""
    await train_offline(
        run, stage, first_update, items=stage.lessons, updates=partial(run.cluster.learner.lesson_updates, stage)
    )


async def train_on_log(run: Run, stage: FineTuneStage | ValuePretrainStage, first_update: int) -> None:
    """Supervised training, RFT and value pre-training: epochs over logged trajectories, in a seeded order."""
    trajectories = trainable(run.store, stage)
    if not trajectories:
        run.progress.say(f"  {stage.name}: none of the trajectories of {stage.data} is kept; nothing is trained")
        run.metrics.write(stage=stage.name, update=0, values={"kept_trajectories": 0})
        await run.checkpoint(stage, 0, complete=True)
        return
    lessons = stage.lessons if isinstance(stage, FineTuneStage) else 0
    await train_offline(
        run,
        stage,
        first_update,
        items=len(trajectories) + lessons,
        updates=partial(run.cluster.learner.log_updates, run.cluster.share(trajectories), stage),
        always={"kept_trajectories": len(trajectories)},
    )


async def train_offline(
    run: Run,
    stage: LessonStage | FineTuneStage | ValuePretrainStage,
    first_update: int,
    *,
    items: int,
    updates: Callable[..., Awaitable[list[Metrics]]],
    always: Mapping[str, Any] | None = None,
) -> None:
    """Epochs over `items` sequences until `updates` makes none any more; `always` goes into every record."""
    if first_update == 0:
        await run.cluster.learner.start_stage(stage)
    total = stage.epochs * -(-items // stage.trajectories_per_update)
    update = first_update
    while records := await updates(max_updates=run.updates_to_next_checkpoint(update)):
        for values in records:
            await run.record(stage, update, total, {**values, **(always or {})})
            update += 1
        run.limit.check()


def trainable(store: TrajectoryStore, stage: FineTuneStage | ValuePretrainStage) -> list[Trajectory]:
    """The logged trajectories that the stage trains on, in the order of the log."""
    dropped = store.dropped()
    return [
        trajectory
        for name in stage.data
        for trajectory in store.trajectories(stage=name)
        if trajectory.trajectory_id not in dropped and kept(trajectory, stage)
    ]


def kept(trajectory: Trajectory, stage: FineTuneStage | ValuePretrainStage) -> bool:
    if isinstance(stage, ValuePretrainStage) or stage.keep == "all":
        return True
    return reject_reason(trajectory) is None


async def train_on_rollouts(run: Run, stage: PPOStage, first_update: int) -> None:
    """PPO. Updates whose batch manifest is in the store already are replayed on exactly those trajectories."""
    learner = run.cluster.learner
    if first_update == 0:
        await learner.start_stage(stage)
    replayed = manifests_to_replay(run.store, stage.name, updates_done=first_update, policy_version=learner.version)
    for manifest in replayed:
        values = await learner.ppo_update([run.store.get(name) for name in manifest.trajectory_ids], stage)
        await run.record(stage, manifest.update, stage.updates, values | {"replayed": 1})
        run.limit.check()
    next_update = first_update + len(replayed)
    if next_update >= stage.updates:
        return
    await run.cluster.publish()
    window = resumed_window(
        run.store,
        stage.name,
        batch_size=stage.trajectories_per_update,
        max_staleness=run.config.rollout.max_staleness,
        updates=stage.updates,
    )
    await run.cluster.take_usage()
    async with collector_of(run, stage, window, policy="actor") as collector:
        for update in range(next_update, stage.updates):
            await ppo_update(run, stage, collector, update)
            run.limit.check()


async def ppo_update(run: Run, stage: PPOStage, collector: Collector, update: int) -> None:
    """One batch: wait for it, learn from it, publish the new weights."""
    started = time.monotonic()
    trajectories = await run.limit.wait(collector.batch())
    collected = time.monotonic()
    values = await run.cluster.learner.ppo_update(trajectories, stage)
    learned = time.monotonic()
    published = await run.cluster.publish()
    await collector.update_finished()
    seconds = {
        "seconds": time.monotonic() - started,
        "seconds_waiting": collected - started,
        "seconds_learning": learned - collected,
        "seconds_publishing": time.monotonic() - learned,
    }
    trouble = collector.take_counts() | {
        "engine_restarts": run.cluster.take_engine_restarts(),
        "silent_actors": run.cluster.take_silent_actors(),
    }
    usage = await run.cluster.take_usage()
    await run.record(stage, update, stage.updates, values | published | seconds | trouble | usage)


def collector_of(
    run: Run, stage: SampleStage | PPOStage, window: TicketWindow, *, policy: str, on_accept: Any = lambda _: None
) -> Collector:
    return Collector(
        order=TicketOrder(run.train_tasks, stage=stage.name, seed=run.config.seed),
        window=window,
        store=run.store,
        stage=stage.name,
        rollout=lambda ticket: run.cluster.rollout(ticket, stage=stage.name, dialogue=stage.dialogue, policy=policy),
        version=lambda: run.cluster.learner.version,
        sampling_version=lambda: run.cluster.published_version,
        capacity=run.cluster.rollout_capacity,
        max_retries=run.config.rollout.max_retries,
        max_drops_in_a_row=run.config.rollout.max_drops_in_a_row,
        screen=lambda trajectory: unfit(trajectory, run.config, need_logprobs=policy == "actor"),
        on_accept=on_accept,
    )


def unfit(trajectory: Trajectory, config: RunConfig, *, need_logprobs: bool) -> str | None:
    """Why the learner could not train on a trajectory; None where it can."""
    _, dropped = screen([trajectory], row_tokens=config.learner.row_tokens, need_logprobs=need_logprobs)
    return dropped.get(trajectory.trajectory_id)


def resumed_window(
    store: TrajectoryStore, stage: str, *, batch_size: int, max_staleness: int, updates: int
) -> TicketWindow:
    """The window of a stage as the store knows it; of a new stage, an empty one."""
    taken = {ticket_number(name) for manifest in store.manifests(stage) for name in manifest.trajectory_ids}
    dropped = {ticket_number(name) for name in store.dropped(stage)}
    ready = {
        ticket_number(trajectory.trajectory_id): trajectory.oldest_version
        for trajectory in store.trajectories(stage=stage)
        if ticket_number(trajectory.trajectory_id) not in taken | dropped
    }
    return TicketWindow.resumed(
        batch_size=batch_size,
        max_staleness=max_staleness,
        limit=batch_size * updates,
        updates=len(list(store.manifests(stage))),
        taken=taken,
        ready=ready,
        dropped=dropped,
    )


def sample_metrics(trajectories: Sequence[Trajectory]) -> Metrics:
    """Rewards and outcomes of sampled trajectories, named as the learner names them."""
    rewards = [trajectory.judgement.reward or 0.0 for trajectory in trajectories]
    outcomes = [str(trajectory.judgement.outcome) for trajectory in trajectories]
    num = len(trajectories)
    return {
        "mean_reward": sum(rewards) / num,
        "num_trajectories": float(num),
        "mean_turns": sum(len(trajectory.turns) for trajectory in trajectories) / num,
        **outcome_metrics(outcomes),
    }
