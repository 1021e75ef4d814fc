"""Begins a run where a stage of another one ended: its checkpoint, model, verdicts, log and evaluations up to there."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

from jaxagent.config.load import ConfigError
from jaxagent.config.run import RunConfig
from jaxagent.files.write import write_json
from jaxagent.run.folder import RunFolder, open_run, read_origin
from rollout.store import TrajectoryStore


def copy_start(config: RunConfig, folder: RunFolder) -> None:
    """Fills the folder of a new run from `config.start_from`, where it has one.

    Evaluations are taken over where both runs evaluate alike: figures of two dialogues are not compared.
    Raises ConfigError where that run cannot serve.
    """
    if config.start_from is None:
        return
    source, source_config = open_run(config.start_from.run)
    stages = common_stages(config, source_config, after=config.start_from.after)
    checkpoint = stage_end_checkpoint(source, config.start_from.after)
    if checkpoint is None:
        raise ConfigError(
            f"start_from: {source.root} has not finished stage {config.start_from.after}; "
            f"finish it with `jaxagent train --resume {source.root}`"
        )
    link_tree(checkpoint, folder.checkpoints / checkpoint.name)
    if source.initial_model.is_dir():
        link_tree(source.initial_model, folder.initial_model)
    same_settings = config.evaluation.model_copy(update={"after": []}) == source_config.evaluation.model_copy(
        update={"after": []}
    )
    for stage in stages if same_settings else []:
        if (source.evaluations / stage / "result.json").exists():
            shutil.copytree(source.evaluations / stage, folder.evaluations / stage)
    if source.verdicts.exists():
        shutil.copy(source.verdicts, folder.verdicts)
    with TrajectoryStore(source.store, writable=False) as log:
        log.copy_to(folder.store, config.store, stages=stages)
    write_json(folder.origin, read_origin(folder) | {"started_from": read_origin(source)["id"]})


def keep_stage_end(folder: RunFolder, stage: str, number: int) -> None:
    """Keeps checkpoint `number`, the one at the end of `stage`, for runs that start there. Safe to repeat."""
    target = folder.stage_end(stage) / str(number)
    if not target.is_dir():
        link_tree(folder.checkpoints / str(number), target)


def stage_end_checkpoint(folder: RunFolder, stage: str) -> Path | None:
    """The checkpoint at the end of `stage`; None where the run has not come so far."""
    whole = [path for path in folder.stage_end(stage).glob("*") if path.name.isdigit()]
    return max(whole, key=lambda path: int(path.name), default=None)


def common_stages(config: RunConfig, source: RunConfig, *, after: str) -> list[str]:
    """Names of the stages up to `after`. Raises ConfigError unless model, tasks and these stages are the same."""
    index = [stage.name for stage in config.stages].index(after) + 1
    if config.stages[:index] != source.stages[:index]:
        raise ConfigError(f"start_from: the stages up to {after} are not those of {source.name}; make them the same")
    for section in ("model", "tasks", "seed"):
        if getattr(config, section) != getattr(source, section):
            raise ConfigError(
                f"start_from: {section}={getattr(config, section)} is {getattr(source, section)} in {source.name}; "
                "make them the same"
            )
    return [stage.name for stage in config.stages[:index]]


def link_tree(source: Path, target: Path) -> None:
    """A copy that shares the files, which are never written again; across file systems a real one. Whole or absent."""
    partial = target.with_name(f"{target.name}.part")
    shutil.rmtree(partial, ignore_errors=True)
    try:
        shutil.copytree(source, partial, copy_function=os.link)
    except shutil.Error:
        shutil.rmtree(partial, ignore_errors=True)
        shutil.copytree(source, partial)
    shutil.rmtree(target, ignore_errors=True)
    partial.rename(target)
