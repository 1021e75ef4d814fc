"""The end of a run: its tables and summary.json, and how a run that has them already answers a resume."""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping, Sequence
from typing import Any

from jaxagent.config.run import RunConfig
from jaxagent.evaluation.aggregate import Interval
from jaxagent.evaluation.results import EvaluationResult, gain, show, table_rows
from jaxagent.files.write import write_json
from jaxagent.report import write_report
from jaxagent.run.folder import RunFolder
from jaxagent.run.metrics_log import read_metrics
from jaxagent.run.progress import RunProgress
from jaxagent.schedule.stage_table import stage_rows, stage_summary


def is_finished(folder: RunFolder, config: RunConfig) -> bool:
    """Whether nothing is left to do: the tables were made, and the last evaluation is still there.

    No override of a resume makes such a run unfinished: what its stages are made of is fixed (jaxagent.run.amend), and
    an evaluation after an earlier stage would need weights that are gone.
    """
    return folder.summary.exists() and (folder.evaluations / config.stages[-1].name / "result.json").exists()


def finish(
    folder: RunFolder, config: RunConfig, results: list[EvaluationResult], progress: RunProgress, *, seconds: float
) -> None:
    """summary.json, the table by stage, and before/after on held-out tasks."""
    final = results[-1]
    gains = {result.label: gain(result, final, seed=config.seed) for result in results[:-1]}
    _show_tables(folder, results, gains, progress)
    summary: dict[str, Any] = {
        "name": config.name,
        "seconds": seconds,
        "stages": stage_summary(read_metrics(folder.metrics)),
        "heldout": {
            "before": results[0].to_json(),
            "after": final.to_json(),
            "all": [result.to_json() for result in results],
            "gains": {label: {"value": i.value, "low": i.low, "high": i.high} for label, i in gains.items()},
        },
    }
    write_json(folder.summary, json.loads(json.dumps(summary, default=str)))
    progress.say(f"run folder: {folder.root}, report: {write_report([folder.root])}")


def show_finished(folder: RunFolder, config: RunConfig, progress: RunProgress, *, changed: Collection[str]) -> None:
    """The stored tables of a finished run. Only reads; `changed` names the keys of overrides, which come too late."""
    progress.say(
        f"run {config.name} is finished: all {len(config.stages)} stages and its evaluations are done, so nothing was "
        "run again and nothing was changed"
    )
    if changed:
        progress.say(f"{', '.join(changed)}: no stage is left that would read it; start a new run with it")
    heldout = json.loads(folder.summary.read_text())["heldout"]
    results = [EvaluationResult.from_json(result) for result in heldout["all"]]
    _show_tables(folder, results, {label: Interval(**value) for label, value in heldout["gains"].items()}, progress)
    progress.say(f"stored in {folder.summary}; `jaxagent report {folder.root}` shows all of it")


def _show_tables(
    folder: RunFolder, results: Sequence[EvaluationResult], gains: Mapping[str, Interval], progress: RunProgress
) -> None:
    progress.table("stages", *stage_rows(read_metrics(folder.metrics)))
    progress.table("held-out tasks, 95 % bootstrap intervals over tasks", *table_rows(results))
    for label, interval in gains.items():
        progress.say(
            f"held-out mean reward, {results[-1].label} over {label}: {show(interval)} (paired bootstrap over tasks)"
        )
