"""The folder of one run: what lies where, and how it is claimed and reopened."""

from __future__ import annotations

import json
import os
import shutil
import uuid
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import yaml

from jaxagent.config.load import ConfigError, dump_config, validate
from jaxagent.config.model import PretrainedModelConfig
from jaxagent.config.run import RunConfig
from jaxagent.files.write import write_atomically, write_json


@dataclass(frozen=True)
class RunFolder:
    """Paths of a run. Nothing here is written by more than one process at a time."""

    root: Path

    @property
    def config(self) -> Path:
        return self.root / "config.yaml"

    @property
    def origin(self) -> Path:
        """An id of the run's own, and that of the run it started from: a name may be given again, an id is not."""
        return self.root / "origin.json"

    @property
    def metrics(self) -> Path:
        return self.root / "metrics.jsonl"

    @property
    def clock(self) -> Path:
        """Wall time of the run so far."""
        return self.root / "clock.json"

    @property
    def summary(self) -> Path:
        return self.root / "summary.json"

    @property
    def store(self) -> Path:
        return self.root / "store"

    @property
    def verdicts(self) -> Path:
        """What the judge has said in this run (sandbox.judge.verdicts)."""
        return self.root / "verdicts.jsonl"

    @property
    def evaluations(self) -> Path:
        return self.root / "evaluations"

    @property
    def checkpoints(self) -> Path:
        return self.root / "checkpoints"

    def stage_end(self, stage: str) -> Path:
        """Holds the checkpoint at the end of a stage under its number, for runs that start from it."""
        return self.root / "stage_ends" / stage

    @property
    def initial_model(self) -> Path:
        return self.root / "initial_model"

    @property
    def tensorboard(self) -> Path:
        return self.root / "tensorboard"

    @property
    def tokens(self) -> Path:
        """Ratios and advantages at the tokens of a few trajectories of every batch, for people to look at."""
        return self.root / "tokens"

    @property
    def log(self) -> Path:
        return self.root / "log"


def create_run(config: RunConfig, *, fill: Callable[[RunFolder], None] = lambda _: None) -> RunFolder:
    """Makes the folder of a new run; `fill` puts into it what the run starts from.

    Everything happens beside the folder's place, under a hidden name, and is renamed at the end: a start that fails or
    is killed leaves no folder that looks like a run. Raises ConfigError where a run of that name exists already.
    """
    root = (config.runs_dir / config.name).expanduser().resolve()
    _check_free(root, config.name)
    _remove_abandoned_parts(root)
    part = RunFolder(root.with_name(f".{root.name}.{os.getpid()}.part"))
    try:
        for path in (part.log, part.evaluations):
            path.mkdir(parents=True)
        write_json(part.origin, {"id": uuid.uuid4().hex, "started_from": None})
        fill(part)
        write_atomically(part.config, dump_config(config))
        _check_free(root, config.name)  # somebody else may have started a run of that name meanwhile
        part.root.rename(root)
    except BaseException:  # cancellation too: no half a folder; raised again
        shutil.rmtree(part.root, ignore_errors=True)
        raise
    return RunFolder(root)


def _check_free(root: Path, name: str) -> None:
    if (root / "config.yaml").exists():
        raise ConfigError(
            f"name={name}: {root} holds a run already; continue it with "
            f"`jaxagent train --resume {root}`, or choose another name (--name NAME)"
        )
    if root.exists() and (not root.is_dir() or any(root.iterdir())):
        raise ConfigError(f"name={name}: {root} exists and is no run; choose another name (--name NAME)")


def _remove_abandoned_parts(root: Path) -> None:
    """Half-made folders of this run whose makers were killed."""
    for part in root.parent.glob(f".{root.name}.*.part"):
        pid = part.name.split(".")[-2]
        if pid.isdigit() and (int(pid) == os.getpid() or not Path(f"/proc/{pid}").exists()):
            shutil.rmtree(part, ignore_errors=True)


def open_run(root: Path) -> tuple[RunFolder, RunConfig]:
    """Reopens an existing run. Raises ConfigError where `root` holds none."""
    folder = RunFolder(root.expanduser().resolve())
    if not folder.config.is_file():
        raise ConfigError(f"{root}: no run here (config.yaml is missing); a run folder is runs_dir/name of its config")
    return folder, validate(yaml.safe_load(folder.config.read_text()), where=str(folder.config))


def read_origin(folder: RunFolder) -> dict[str, str | None]:
    """`id` and `started_from` of a run; both None where the run is older than these ids."""
    if not folder.origin.exists():
        return {"id": None, "started_from": None}
    return json.loads(folder.origin.read_text())


def starting_model(config: RunConfig, folder: RunFolder) -> Path:
    """The Hugging Face folder that the run starts from; that of a scratch model is made by the learner."""
    if isinstance(config.model, PretrainedModelConfig):
        return config.model.path.expanduser().resolve()
    return folder.initial_model
