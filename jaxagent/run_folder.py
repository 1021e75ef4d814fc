"""The folder of one run: what lies where, and how it is claimed and reopened."""

from __future__ import annotations

import json
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from jaxagent.config import PretrainedModelConfig, RunConfig
from jaxagent.load_config import ConfigError, dump_config, validate


@dataclass(frozen=True)
class RunFolder:
    """Paths of a run. Nothing here is written by more than one process at a time."""

    root: Path

    @property
    def config(self) -> Path:
        return self.root / "config.yaml"

    @property
    def metrics(self) -> Path:
        return self.root / "metrics.jsonl"

    @property
    def summary(self) -> Path:
        return self.root / "summary.json"

    @property
    def store(self) -> Path:
        return self.root / "store"

    @property
    def evaluations(self) -> Path:
        return self.root / "evaluations"

    @property
    def checkpoints(self) -> Path:
        return self.root / "checkpoints"

    def stage_end(self, stage: str) -> Path:
        """The checkpoint at the end of a stage, kept for runs that start from it."""
        return self.root / "stage_ends" / stage

    @property
    def initial_model(self) -> Path:
        return self.root / "initial_model"

    @property
    def tensorboard(self) -> Path:
        return self.root / "tensorboard"

    @property
    def log(self) -> Path:
        return self.root / "log"


def create_run(config: RunConfig) -> RunFolder:
    """Makes the folder of a new run. Raises ConfigError where a run of that name exists already."""
    folder = RunFolder((config.runs_dir / config.name).expanduser().resolve())
    if folder.config.exists():
        raise ConfigError(
            f"name={config.name}: {folder.root} holds a run already; continue it with "
            f"`jaxagent train --resume {folder.root}`, or choose another name (--name NAME)"
        )
    if folder.root.exists() and any(folder.root.iterdir()):
        raise ConfigError(f"name={config.name}: {folder.root} exists and is no run; choose another name (--name NAME)")
    folder.root.mkdir(parents=True, exist_ok=True)
    for path in (folder.log, folder.evaluations):
        path.mkdir(exist_ok=True)
    write_atomically(folder.config, dump_config(config))
    return folder


def open_run(root: Path) -> tuple[RunFolder, RunConfig]:
    """Reopens an existing run. Raises ConfigError where `root` holds none."""
    folder = RunFolder(root.expanduser().resolve())
    if not folder.config.is_file():
        raise ConfigError(f"{root}: no run here (config.yaml is missing); a run folder is runs_dir/name of its config")
    return folder, validate(yaml.safe_load(folder.config.read_text()), where=str(folder.config))


def starting_model(config: RunConfig, folder: RunFolder) -> Path:
    """The Hugging Face folder that the run starts from; that of a scratch model is made by the learner."""
    if isinstance(config.model, PretrainedModelConfig):
        return config.model.path.expanduser().resolve()
    return folder.initial_model


def write_atomically(path: Path, text: str) -> None:
    """Replaces `path` as a whole: a reader, or a crash, sees the old text or the new one."""
    part = path.with_name(f"{path.name}.{os.getpid()}.part")
    try:
        with part.open("w") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        part.replace(path)
    finally:
        part.unlink(missing_ok=True)


def write_json(path: Path, value: Any) -> None:
    write_atomically(path, json.dumps(value, indent=1) + "\n")
