"""Numbered checkpoints of a run: arrays through Orbax and one JSON record, each checkpoint whole or absent."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import jax
import numpy as np
import orbax.checkpoint as ocp

from jaxagent.files.disk import disk_full

FORMAT = 1
"""Version of what a checkpoint holds; another one is refused."""


class CheckpointError(RuntimeError):
    """A checkpoint is missing, of another format, of another model, or could not be written."""


class Checkpoints:
    """The checkpoints in one folder. A checkpoint is written beside its final name and renamed, so a crash while
    saving leaves the earlier ones; the oldest beyond keep_last are deleted after a new one is complete."""

    def __init__(self, folder: Path, *, keep_last: int = 2, writable: bool = True) -> None:
        """`writable` False only reads, and is safe beside a run that is saving; the folder has to exist then."""
        self._folder = folder.absolute()
        options = ocp.CheckpointManagerOptions(
            max_to_keep=keep_last if writable else None,
            enable_async_checkpointing=False,
            cleanup_tmp_directories=writable,
            create=writable,
            read_only=not writable,
        )
        handlers = {"arrays": ocp.StandardCheckpointHandler(), "record": ocp.JsonCheckpointHandler()}
        self._manager = ocp.CheckpointManager(self._folder, options=options, item_handlers=handlers)

    def latest(self) -> int | None:
        return self._manager.latest_step()

    def save(self, arrays: Any, record: dict[str, Any]) -> int:
        """Saves a pytree of arrays and a JSON record under the next number, and returns that number.

        Raises CheckpointError where the disk is full, with nothing half-written left.
        """
        json.dumps(record)  # refuse what JSON can't hold before anything is written
        number = 0 if (latest := self.latest()) is None else latest + 1
        args = ocp.args.Composite(
            arrays=ocp.args.StandardSave(by_path(arrays)), record=ocp.args.JsonSave({"format": FORMAT, **record})
        )
        try:
            self._manager.save(number, args=args)
            self._manager.wait_until_finished()
        except Exception as error:  # a full disk comes as a ValueError of tensorstore; all else is raised again
            reason = disk_full(error)
            if reason is None:
                raise
            for part in self._folder.glob(f"{number}.*tmp*"):
                shutil.rmtree(part, ignore_errors=True)
            size = sum(leaf.nbytes for leaf in by_path(arrays).values())
            raise CheckpointError(
                f"{self._folder}: no room for checkpoint {number} of {size:,} bytes ({reason}); nothing of it was kept "
                "and the one before is whole. Free some space, then resume the run"
            ) from None
        return number

    def record(self, number: int | None = None) -> dict[str, Any]:
        """The JSON record of a checkpoint, by default of the latest."""
        number = self._existing(number)
        record = self._manager.restore(number, args=ocp.args.Composite(record=ocp.args.JsonRestore()))["record"]
        check_format(record, f"{self._folder}/{number}")
        return record

    def arrays(self, like: Any, number: int | None = None) -> Any:
        """The arrays of a checkpoint, each of the shape and dtype, and on the devices, of its counterpart in `like`.

        `like` holds arrays or jax.ShapeDtypeStruct with a sharding; the mesh may be another one than at saving.
        """
        number = self._existing(number)
        abstract = _abstract(like)
        check_shapes(f"{self._folder}/{number}", self._saved_shapes(number), abstract)
        restored = self._manager.restore(number, args=ocp.args.Composite(arrays=ocp.args.StandardRestore(abstract)))
        return _filled(like, abstract, restored["arrays"])

    def some_arrays(self, like: Any, number: int | None = None) -> Any:
        """As `arrays`, for a part of the tree that was saved; nothing else of the checkpoint is read."""
        number = self._existing(number)
        abstract, saved = _abstract(like), self._saved_shapes(number)
        if missing := sorted(abstract.keys() - saved.keys())[:3]:
            raise CheckpointError(f"{self._folder}/{number} is of another model: it lacks {', '.join(missing)}")
        check_shapes(f"{self._folder}/{number}", {name: saved[name] for name in abstract}, abstract)
        args = ocp.args.PyTreeRestore(
            item=abstract,
            restore_args=ocp.checkpoint_utils.construct_restore_args(abstract),
            partial_restore=True,
        )
        with ocp.Checkpointer(ocp.PyTreeCheckpointHandler()) as reader:
            restored = reader.restore(self._folder / str(number) / "arrays", args=args)
        return _filled(like, abstract, restored)

    def raw_arrays(self, number: int | None = None) -> dict[str, np.ndarray]:
        """Every array of a checkpoint on the host, by the path it was saved under."""
        number = self._existing(number)
        as_numpy = {name: ocp.RestoreArgs(restore_type=np.ndarray) for name in self._saved_shapes(number)}
        with ocp.Checkpointer(ocp.PyTreeCheckpointHandler()) as reader:
            return reader.restore(
                self._folder / str(number) / "arrays", args=ocp.args.PyTreeRestore(restore_args=as_numpy)
            )

    def close(self) -> None:
        self._manager.close()

    def _existing(self, number: int | None) -> int:
        number = self.latest() if number is None else number
        if number is None or number not in self._manager.all_steps():
            raise CheckpointError(
                f"{self._folder} holds {'no checkpoint' if number is None else f'no {number}'}; "
                f"found: {sorted(self._manager.all_steps())}. Start the run without --resume, or "
                "name the folder of a run that has saved one"
            )
        return number

    def _saved_shapes(self, number: int) -> dict[str, tuple[int, ...]]:
        return {name: tuple(leaf.shape) for name, leaf in self._manager.item_metadata(number)["arrays"].tree.items()}


def check_format(record: dict[str, Any], where: str) -> None:
    """Raises CheckpointError where a record was written by another version."""
    if record.get("format") != FORMAT:
        raise CheckpointError(
            f"{where}: its format is {record.get('format')}, this version reads "
            f"{FORMAT}; resume with the version that wrote it, or start a new run"
        )


def check_shapes(where: str, saved: dict[str, tuple[int, ...]], wanted: dict[str, Any]) -> None:
    """Raises CheckpointError where a checkpoint's arrays are not those of the learner that reads it."""
    if saved.keys() != wanted.keys():
        odd = sorted(saved.keys() ^ wanted.keys())[:3]
        raise CheckpointError(
            f"{where} is of another model or optimizer: only one side has "
            f"{', '.join(odd)}. Resume with the run's own config.yaml"
        )
    for name, want in wanted.items():
        if saved[name] != tuple(want.shape):
            raise CheckpointError(
                f"{where} is of another model: {name} is {saved[name]} "
                f"there and {want.shape} here. Resume with the run's own config.yaml"
            )


def _abstract(like: Any) -> dict[str, Any]:
    return {name: ocp.utils.to_shape_dtype_struct(leaf) for name, leaf in by_path(like).items()}


def _filled(like: Any, abstract: dict[str, Any], restored: Any) -> Any:
    return jax.tree.unflatten(jax.tree.structure(like), [restored[name] for name in abstract])


def by_path(tree: Any) -> dict[str, Any]:
    """Leaves by their path: what is stored doesn't depend on container classes."""
    paths = jax.tree_util.tree_flatten_with_path(tree)[0]
    return {jax.tree_util.keystr(path, simple=True, separator="/"): _as_array(leaf) for path, leaf in paths}


def _as_array(leaf: Any) -> Any:
    return np.asarray(leaf) if isinstance(leaf, int | float) else leaf
