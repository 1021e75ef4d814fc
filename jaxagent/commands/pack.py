"""`jaxagent run pack` and `unpack`: a run as a few small files, for machines that keep nothing and are left soon.

    OUT/checkpoint/    the portable checkpoint (jaxagent.learner.portable)        at most 4 files of 16 MiB
    OUT/run-N.tar.xz   config, curves, log, verdicts, baseline times, cut in parts  at most 3 files of 16 MiB
    OUT/pack.json      checksums of the parts, and whether the whole log is in them

All of it together stays below a limit, 64 MiB where none is given.
The run that is unpacked goes on with `jaxagent train --resume`. Where the whole log is too large, trajectories that no
later update reads stay behind; every manifest and every figure comes along.
"""

from __future__ import annotations

import hashlib
import json
import shutil
import tarfile
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from jaxagent.config.load import ConfigError
from jaxagent.config.run import RunConfig
from jaxagent.files.new_folder import new_folder
from jaxagent.files.write import write_json
from jaxagent.learner.checkpoint import Checkpoints
from jaxagent.learner.export import checkpoint_folder
from jaxagent.learner.portable import PortableCheckpoint
from jaxagent.run.folder import RunFolder, open_run
from jaxagent.run.fork import keep_stage_end
from jaxagent.synthesis.sources import resolve_tasks
from rollout.store import TrajectoryStore

FORMAT = 1
MAX_PARTS, MAX_PART_BYTES = 3, 16 << 20
MAX_MIB = 64.0
_COMPRESSION = 2
"""Of xz: about 15 MB/s, and a log to a fifth."""
_BASELINES = "baselines"
_ABOUT_BYTES = 4096
"""Room for pack.json."""


class PackError(RuntimeError):
    """A run does not fit, or a pack is not whole; the message says what to do."""


@dataclass(frozen=True, slots=True)
class Packed:
    """What `pack_run` wrote."""

    path: Path
    stage: str | None
    """Stage of the checkpoint; None where the run has none yet."""
    updates: int
    whole: bool
    """Every trajectory of the log is in it."""
    size_bytes: int


def pack_run(run_dir: Path, out: Path, *, after: str | None = None, max_mib: float = MAX_MIB) -> Packed:
    """Writes the run at its newest checkpoint, or as it was at the end of stage `after`, to the new folder `out`.

    `max_mib` is the limit of all its files together. May run beside the run itself. Raises ConfigError (no run, no such
    stage), CheckpointError where the learner's state is too large (set learner.lora), PackError where the rest is,
    FileExistsError where `out` holds files.
    """
    folder, config = open_run(run_dir)
    with new_folder(out) as target:
        at = _pack_checkpoint(folder, after, target / "checkpoint")
        driver = at["driver"] if at else None
        room = int(max_mib * 2**20) - _size(target) - _ABOUT_BYTES
        keeps = [(True, lambda _: True), (False, _needed(folder, config, driver))]
        for whole, keep in keeps:
            digests = _pack_files(folder, config, target, keep=keep, whole=whole)
            if len(digests) <= MAX_PARTS and sum((target / name).stat().st_size for name in digests) <= room:
                break
            for name in digests:
                (target / name).unlink()
        else:
            raise PackError(
                f"{folder.root}: what the run still needs, beside its checkpoint, takes more than {max(room, 0):,} "
                f"bytes or {MAX_PARTS} files of {MAX_PART_BYTES:,}; raise --max-mib {max_mib:g}, pack it at the end of "
                "a stage (--after STAGE), or copy the whole folder"
            )
        write_json(target / "pack.json", {"format": FORMAT, "name": config.name, "whole": whole, "sha256": digests})
        size = _size(target)
    stage, updates = (driver["name"], driver["updates"]) if driver else (None, 0)
    return Packed(out, stage, updates, whole, size)


def unpack_run(pack: Path, run_dir: Path) -> Path:
    """Makes a run folder of a pack, and puts baseline times where the run's judge keeps its own.

    Raises PackError or CheckpointError where a file is missing or changed, FileExistsError where `run_dir` holds files.
    """
    about = _read_about(pack)
    with new_folder(run_dir) as target:
        with tempfile.TemporaryFile() as joined:
            for name, digest in about["sha256"].items():
                joined.write(_read_part(pack / name, digest))
            joined.seek(0)
            with tarfile.open(fileobj=joined, mode="r:xz") as archive:
                archive.extractall(target, filter="data")
        folder, config = open_run(target)
        if (pack / "checkpoint").is_dir():
            _unpack_checkpoint(PortableCheckpoint(pack / "checkpoint"), folder, config)
        _spread_baselines(target / _BASELINES, config)
    return run_dir


def _pack_checkpoint(folder: RunFolder, after: str | None, target: Path) -> dict[str, Any] | None:
    """The record of the checkpoint that was packed; None where the run has none and none was asked for."""
    try:
        source = checkpoint_folder(folder, after)
    except ConfigError:
        if after is not None:
            raise
        return None
    checkpoints = Checkpoints(source, writable=False)
    try:
        record = {key: value for key, value in checkpoints.record().items() if key != "format"}
        PortableCheckpoint(target).save(checkpoints.raw_arrays(), record)
        return record
    finally:
        checkpoints.close()


def _unpack_checkpoint(portable: PortableCheckpoint, folder: RunFolder, config: RunConfig) -> None:
    checkpoints, record = Checkpoints(folder.checkpoints, keep_last=config.checkpoint.keep_last), portable.record()
    try:
        number = checkpoints.save(portable.raw_arrays(), record)
    finally:
        checkpoints.close()
    if record["driver"]["complete"]:
        keep_stage_end(folder, record["driver"]["name"], number)


def _needed(folder: RunFolder, config: RunConfig, driver: dict[str, Any] | None) -> Callable[[str], bool]:
    """Which trajectories a run that goes on from a checkpoint with that record reads again."""
    first = 0 if driver is None else driver["stage"] + driver["complete"]
    ahead = config.stages[first:]
    sources = {stage.name for stage in ahead} | {name for stage in ahead for name in getattr(stage, "data", [])}
    done = {ahead[0].name: driver["updates"]} if driver and ahead and not driver["complete"] else {}
    with TrajectoryStore(folder.store, writable=False) as store:
        kept = {name for stage in sources for name in store.ids(stage)}
        for manifest in store.manifests():
            if manifest.update < done.get(manifest.stage, 0):
                kept.difference_update(manifest.trajectory_ids)
    return kept.__contains__


def _pack_files(
    folder: RunFolder, config: RunConfig, target: Path, *, keep: Callable[[str], bool], whole: bool
) -> dict[str, str]:
    """Writes the parts; returns their checksums by name."""
    with tempfile.TemporaryDirectory(dir=target) as scratch_name, tempfile.TemporaryFile(dir=target) as packed:
        scratch = Path(scratch_name)
        _copy_run(folder, RunFolder(scratch), keep=keep, whole=whole)
        _gather_baselines(scratch / _BASELINES, config)
        with tarfile.open(fileobj=packed, mode="w:xz", preset=_COMPRESSION) as archive:
            archive.add(scratch, arcname=".")
        packed.seek(0)
        digests: dict[str, str] = {}
        while piece := packed.read(MAX_PART_BYTES):
            name = f"run-{len(digests)}.tar.xz"
            (target / name).write_bytes(piece)
            digests[name] = hashlib.sha256(piece).hexdigest()
    return digests


def _copy_run(folder: RunFolder, copy: RunFolder, *, keep: Callable[[str], bool], whole: bool) -> None:
    """Files of the run but for its checkpoints; what only people look at where all of it is to come along."""
    files = [folder.origin, folder.metrics, folder.clock, folder.summary, folder.verdicts]
    for path in [*folder.root.glob("config*.yaml"), *files]:
        if path.exists():
            shutil.copy(path, copy.root)
    if folder.store.is_dir():
        with TrajectoryStore(folder.store, writable=False) as store:
            store.copy_to(copy.store, keep=keep)
    for evaluation in folder.evaluations.iterdir() if folder.evaluations.is_dir() else []:
        _copy_evaluation(evaluation, copy.evaluations / evaluation.name, whole=whole)
    extra = [folder.tokens, folder.tensorboard, folder.log] if whole else []
    for path in [folder.initial_model, *extra]:
        if path.is_dir():
            shutil.copytree(path, copy.root / path.name)


def _copy_evaluation(source: Path, target: Path, *, whole: bool) -> None:
    """Of a finished one the result counts, of another the samples."""
    target.mkdir(parents=True)
    result = source / "result.json"
    if result.exists():
        shutil.copy(result, target)
    if (source / "store").is_dir() and (whole or not result.exists()):
        with TrajectoryStore(source / "store", writable=False) as store:
            store.copy_to(target / "store")


def _gather_baselines(target: Path, config: RunConfig) -> None:
    """Times of the run's own tasks among those that its judge has kept."""
    names = {task.task_id for source in (config.tasks.train, config.tasks.heldout) for task in resolve_tasks(source)}
    target.mkdir()
    for path in _baseline_folder(config).glob("*.json"):
        if json.loads(path.read_text())["task_id"] in names:
            shutil.copy(path, target)


def _spread_baselines(source: Path, config: RunConfig) -> None:
    folder = _baseline_folder(config)
    folder.mkdir(parents=True, exist_ok=True)
    for path in source.iterdir():
        if not (folder / path.name).exists():
            shutil.copy(path, folder)
    shutil.rmtree(source)


def _size(folder: Path) -> int:
    return sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())


def _baseline_folder(config: RunConfig) -> Path:
    return config.judge.baseline_dir.expanduser() / "times"


def _read_about(pack: Path) -> dict[str, Any]:
    path = pack / "pack.json"
    if not path.is_file():
        raise PackError(
            f"{pack} is no packed run: pack.json is missing; name the folder that `jaxagent run pack` wrote"
        )
    about = json.loads(path.read_text())
    if about.get("format") != FORMAT:
        raise PackError(f"{pack}: its format is {about.get('format')}, this version reads {FORMAT}; unpack it with the "
                        "version that packed it")  # fmt: skip
    return about


def _read_part(path: Path, digest: str) -> bytes:
    data = path.read_bytes() if path.is_file() else b""
    if hashlib.sha256(data).hexdigest() != digest:
        state = "is not the file that was packed" if data else "is missing"
        raise PackError(f"{path} {state}; copy it again from where the run was packed")
    return data
