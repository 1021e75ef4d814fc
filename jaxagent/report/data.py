"""What a report shows of one run, read from its folder. Nothing in the folder is changed."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from jaxagent.config.model import ScratchModelConfig
from jaxagent.config.run import RunConfig
from jaxagent.evaluation.aggregate import Interval
from jaxagent.evaluation.results import EvaluationResult, gain
from jaxagent.report.heldout import HeldoutSamples
from jaxagent.report.trajectories import TrajectoryPack, pack_run
from jaxagent.run.folder import RunFolder, open_run
from jaxagent.run.metrics_log import read_metrics
from rollout.store import TrajectoryStore


@dataclass(frozen=True, slots=True, kw_only=True)
class RunData:
    """One run as a report needs it."""

    folder: RunFolder
    config: RunConfig
    config_text: str
    records: list[dict[str, Any]]
    """The lines of metrics.jsonl."""
    evaluations: list[EvaluationResult]
    """Held-out results in the order of the stages."""
    gains: dict[str, Interval]
    """label -> held-out mean reward of the last evaluation minus that one's, paired by task."""
    seconds: float | None
    """Wall time of the finished run; None while it goes on, or where it was stopped."""
    trajectories: TrajectoryPack
    heldout: list[HeldoutSamples]
    """Samples of `evaluations`, in their order."""
    facts: list[tuple[str, str]]
    """Name and value of what the head of the page says."""
    is_evaluation: bool = False
    """An evaluation's folder in place of a run's: there are no stages and no updates."""
    families: list[EvaluationResult] = field(default_factory=list)
    """Of an evaluation: its results by family of operators."""
    remarks: list[str] = field(default_factory=list)
    """Of an evaluation: what its figures do not say."""


@dataclass(frozen=True, slots=True)
class StageBand:
    """Steps (updates counted over all stages) of one stage, both ends included."""

    stage: str
    first: int
    last: int


def load_run(root: Path) -> RunData:
    """Raises ConfigError where `root` holds no run, StoreError where its log cannot be read."""
    folder, config = open_run(root)
    evaluations, records = read_evaluations(folder, config), list(read_metrics(folder.metrics))
    seconds = json.loads(folder.summary.read_text())["seconds"] if folder.summary.exists() else None
    trajectories = pack_run(folder, config)
    *earlier, last = evaluations or [None]
    return RunData(
        folder=folder,
        config=config,
        config_text=folder.config.read_text(),
        records=records,
        evaluations=evaluations,
        gains={e.label: gain(e, last, seed=config.seed) for e in earlier if e and last and _same_tasks(e, last)},
        seconds=seconds,
        trajectories=trajectories,
        facts=_facts(config, seconds=seconds, num_updates=len(records), num_stored=trajectories.num_stored),
        heldout=[_samples(folder, config, result.label) for result in evaluations],
    )


def stage_bands(records: list[dict[str, Any]]) -> list[StageBand]:
    """Where each stage lies on the axis of steps, in the order in which they ran."""
    bands: list[StageBand] = []
    for record in records:
        if bands and bands[-1].stage == record["stage"]:
            bands[-1] = StageBand(record["stage"], bands[-1].first, record["step"])
        else:
            bands.append(StageBand(record["stage"], record["step"], record["step"]))
    return bands


def _facts(config: RunConfig, *, seconds: float | None, num_updates: int, num_stored: int) -> list[tuple[str, str]]:
    model = config.model
    if isinstance(model, ScratchModelConfig):
        shape = f"{model.family}, {model.num_layers} layers of {model.hidden_size}, from scratch"
    else:
        shape = model.path.name
    return [
        ("wall time", show_seconds(seconds) if seconds is not None else "not finished"),
        ("stages", ", ".join(stage.name for stage in config.stages)),
        ("updates", str(num_updates)),
        ("trajectories", f"{num_stored:,}"),
        ("model", shape),
        ("skill", config.tasks.skill),
        ("tasks", f"{config.tasks.train}; held out {config.tasks.heldout}"),
        ("judge", f"{config.judge.protocol} protocol, sandbox {config.sandbox.backend}"),
        ("seed", str(config.seed)),
    ]


def show_seconds(seconds: float) -> str:
    if seconds < 60:
        return f"{seconds:.1f} s"
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours} h {minutes:02d} min" if hours else f"{minutes} min {rest:02d} s"


def task_rows(evaluations: list[EvaluationResult]) -> tuple[list[str], list[list[str]]]:
    """Column names, and one row a held-out task: the mean reward of its samples at every evaluation."""
    columns = ["task", *(result.label for result in evaluations)]
    tasks = sorted({task for result in evaluations for task in result.rewards})
    return columns, [[task, *(_mean(result.rewards.get(task)) for result in evaluations)] for task in tasks]


def _mean(rewards: list[float] | None) -> str:
    return f"{sum(rewards) / len(rewards):.2f}" if rewards else "-"


def read_evaluations(folder: RunFolder, config: RunConfig) -> list[EvaluationResult]:
    """Of the evaluations that have finished, in the order of the stages."""
    results = []
    for stage in config.stages:
        path = folder.evaluations / stage.name / "result.json"
        if path.exists():
            results.append(EvaluationResult.from_json(json.loads(path.read_text())))
    return results


def _samples(folder: RunFolder, config: RunConfig, label: str) -> HeldoutSamples:
    path = folder.evaluations / label / "store"
    if not path.is_dir():  # copied without it
        return HeldoutSamples.of(label, [])
    with TrajectoryStore(path, config.store, writable=False) as store:
        return HeldoutSamples.of(label, store.trajectories())


def _same_tasks(one: EvaluationResult, other: EvaluationResult) -> bool:
    return one.rewards.keys() == other.rewards.keys()
