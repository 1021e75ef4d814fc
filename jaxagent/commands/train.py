"""The run: every stage of the schedule in order, evaluation where the config asks for it, the tables at the end."""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from pathlib import Path

from jaxagent.commands.finishing import finish, is_finished, show_finished
from jaxagent.commands.preflight import check_inputs
from jaxagent.commands.prompt_lengths import fitting_tasks
from jaxagent.commands.stopping import stop_in_order
from jaxagent.config.changes import config_changes
from jaxagent.config.run import RunConfig
from jaxagent.evaluation.evaluate import Sampling, evaluate
from jaxagent.evaluation.results import EvaluationResult, show
from jaxagent.run.amend import amended, record_change
from jaxagent.run.clock import RunClock
from jaxagent.run.folder import RunFolder, create_run, open_run
from jaxagent.run.fork import copy_start
from jaxagent.run.metrics_log import MetricsLog, read_metrics
from jaxagent.run.progress import RunProgress
from jaxagent.run.time_limit import TimeLimit, TimeUpError
from jaxagent.run.trackers import start_trackers
from jaxagent.schedule.cluster import Cluster
from jaxagent.schedule.run import Run
from jaxagent.schedule.stages import is_sampled, run_stage
from rollout.store import TrajectoryStore
from sandbox.types import Task


async def train(config: RunConfig, *, stop_after_s: float | None = None) -> Path:
    """Starts a new run. Returns its folder; where nothing was done yet when it failed, no folder stays behind.

    Raises TimeUpError where `stop_after_s` seconds were not enough: the run is saved then, and can be resumed.
    """
    limit = TimeLimit(stop_after_s)
    tasks = check_inputs(config)
    folder = create_run(config, fill=lambda part: copy_start(config, part))
    try:
        return await _run(folder, config, tasks, limit)
    except TimeUpError:  # what took the time, baselines say, is kept, and the run can be resumed
        raise
    except BaseException:  # Ctrl-C and SIGTERM too; raised again
        if not has_begun(folder):
            shutil.rmtree(folder.root, ignore_errors=True)
        raise


def has_begun(folder: RunFolder) -> bool:
    """Whether a run's folder holds anything that took work to make: an update, a trajectory, a checkpoint."""
    if any(read_metrics(folder.metrics)) or (folder.checkpoints.is_dir() and any(folder.checkpoints.iterdir())):
        return True
    if not folder.store.is_dir():
        return False
    with TrajectoryStore(folder.store, writable=False) as store:
        return len(store) > 0


def _how_to_go_on(folder: RunFolder) -> str:
    if has_begun(folder):
        return f"continue with: jaxagent train --resume {folder.root}"
    return "nothing was done yet"


async def resume(root: Path, overrides: Sequence[str] = (), *, stop_after_s: float | None = None) -> Path:
    """Continues the run in `root` after its last checkpoint, with what `overrides` change. Otherwise as `train`.

    Of a finished run the stored results are shown, and its folder stays as it is.
    """
    limit = TimeLimit(stop_after_s)
    folder, stored = open_run(root)
    config = amended(folder, stored, overrides)
    if is_finished(folder, config):
        with RunProgress() as progress:
            show_finished(folder, stored, progress, changed=config_changes(stored, config))
        return folder.root
    return await _run(folder, config, check_inputs(config), limit)


async def _run(folder: RunFolder, config: RunConfig, tasks: tuple[list[Task], list[Task]], limit: TimeLimit) -> Path:
    clock = RunClock(folder.clock)
    train_tasks, heldout_tasks = tasks
    # The store has one writer, so from here on nobody else changes the folder.
    with RunProgress() as progress, TrajectoryStore(folder.store, config.store) as store:
        for key, (old, new) in record_change(folder, config).items():
            progress.say(f"resumed with {key}={new}; it was {old}")
        progress.say(
            f"run {config.name}: {len(train_tasks)} train tasks, {len(heldout_tasks)} held out, in {folder.root}"
        )
        async with Cluster(config, folder, progress) as cluster:
            metrics = MetricsLog(folder, start_trackers(config, folder))
            run = Run(config, folder, cluster, store, metrics, progress, clock, train_tasks, heldout_tasks, limit)
            try:
                with stop_in_order(lambda: _how_to_go_on(folder)):
                    results = await _walk(run)
            except TimeUpError as error:
                await run.save_unsaved()
                raise TimeUpError(f"{error}; continue with: jaxagent train --resume {folder.root}") from None
            finally:
                metrics.close()
                clock.save()
        finish(folder, config, results, progress, seconds=clock.seconds)
    return folder.root


async def _walk(run: Run) -> list[EvaluationResult]:
    """Stages and evaluations from where the last checkpoint stands."""
    model_dir = await run.cluster.start_learner()
    run.train_tasks = fitting_tasks(
        run.config, run.train_tasks, run.heldout_tasks, model_dir=model_dir, say=run.progress.say
    )
    await run.limit.wait(run.cluster.prepare([*run.train_tasks, *run.heldout_tasks], model_dir))
    at = await run.cluster.learner.restore()
    results = []
    for index, stage in enumerate(run.config.stages):
        done = at.updates if index == at.stage else 0
        is_ahead = index > at.stage or (index == at.stage and not at.complete)
        if is_ahead and not is_sampled(run.folder, run.store, stage):
            run.metrics.forget(stage=stage.name, from_update=done)
            run.progress.say(f"stage {stage.name} ({stage.kind})")
            await run_stage(run, stage, done)
        is_last = index == len(run.config.stages) - 1
        if stage.name in run.config.evaluation.after or is_last:
            if index < at.stage and not (run.folder.evaluations / stage.name / "result.json").exists():
                run.progress.say(f"  no evaluation after {stage.name}: the weights of that moment are gone")
                continue
            results.append(await evaluate_heldout(run, stage.name))
    return results


async def evaluate_heldout(run: Run, label: str) -> EvaluationResult:
    """The held-out tasks with the current weights. A finished evaluation of that label is read, not repeated."""
    config, folder = run.config, run.folder.evaluations / label
    if not (folder / "result.json").exists():
        await run.cluster.publish()
    sampling = Sampling(
        label=label,
        tasks=run.heldout_tasks,
        samples_per_task=config.evaluation.samples_per_task,
        seed=config.seed,
        rollout=lambda ticket: run.cluster.rollout(
            ticket, stage=f"evaluation_{label}", dialogue=config.evaluation.dialogue, policy="actor"
        ),
        capacity=run.cluster.rollout_capacity,
        max_retries=config.rollout.max_retries,
    )
    evaluating = evaluate(folder, sampling, store_config=config.store, progress=run.progress)
    result = await run.limit.wait(evaluating)
    run.progress.say(f"  held-out after {label}: mean reward {show(result.figures['mean_reward'])}")
    return result
