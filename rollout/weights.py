"""Weights on their way from the learner to an engine on the same machine: safetensors files in shared memory."""

from __future__ import annotations

import errno
import fcntl
import hashlib
import os
import shutil
import tempfile
import time
import uuid
from collections.abc import Iterable
from pathlib import Path

import numpy as np
import safetensors.numpy

from rollout.packages import Probe, WeightsError, WeightsFile, WeightsPackage

_PREFIX = "jaxagent-weights-"
_LOCK_NAME = "lock"
_YOUNG_S = 60.0


class WeightsWriter:
    """Writes packages into a folder of its own and keeps the last few; `close` removes the folder.

    The folder's lock lives as long as the writer's process, so what a killed run left behind is recognised, and
    removed, by the next writer.
    """

    def __init__(self, *, directory: str | Path = "/dev/shm", keep: int = 2, max_file_bytes: int = 1 << 30) -> None:
        if keep < 1:
            raise ValueError(f"keep={keep}: at least the newest package has to stay, so keep >= 1")
        remove_abandoned(directory)
        self._keep = keep
        self._max_file_bytes = max_file_bytes
        self._folder = Path(tempfile.mkdtemp(prefix=_PREFIX, dir=directory))
        self._lock_fd = os.open(self._folder / _LOCK_NAME, os.O_CREAT | os.O_RDWR, 0o600)
        fcntl.flock(self._lock_fd, fcntl.LOCK_EX)
        self._packages: list[WeightsPackage] = []
        self._base, self._base_files = uuid.uuid4().hex, list[WeightsFile]()

    @property
    def folder(self) -> Path:
        return self._folder

    def write(
        self,
        named_arrays: Iterable[tuple[str, np.ndarray]],
        *,
        version: int,
        unchanging: Iterable[tuple[str, np.ndarray]] = (),
        probe: Probe | None = None,
    ) -> WeightsPackage:
        """Writes (name, array) pairs, one file per `max_file_bytes`, so at most that much is copied at a time.

        `unchanging`: the weights that are the same in every version; read the first time alone, and kept until `close`.
        Raises WeightsError when the folder is full; nothing of the package then stays behind.
        """
        if not self._base_files:
            self._base_files = self._write_files(unchanging, version=version, changed=False)
        files = self._write_files(named_arrays, version=version, changed=True)
        if not files:
            raise WeightsError(f"version {version} has no weights: the iterator of named arrays was empty")
        base = self._base if self._base_files else ""
        package = WeightsPackage(version=version, files=files + self._base_files, base=base, probe=probe)
        self._packages.append(package)
        for old in self._packages[: -self._keep]:
            _remove(file for file in old.files if file.changed)
        self._packages = self._packages[-self._keep :]
        return package

    def close(self) -> None:
        """Removes every package; safe to call twice."""
        if self._lock_fd >= 0:
            shutil.rmtree(self._folder, ignore_errors=True)
            os.close(self._lock_fd)
            self._lock_fd = -1

    def _write_files(
        self, named_arrays: Iterable[tuple[str, np.ndarray]], *, version: int, changed: bool
    ) -> list[WeightsFile]:
        files: list[WeightsFile] = []
        try:
            for shard in _shards(named_arrays, self._max_file_bytes):
                files.append(self._write_file(shard, version=version, index=len(files), changed=changed))
        except BaseException:  # cancellation too: no half a version stays in memory; raised again
            _remove(files)
            raise
        return files

    def _write_file(self, arrays: dict[str, np.ndarray], *, version: int, index: int, changed: bool) -> WeightsFile:
        data = safetensors.numpy.save(arrays)
        # The time keeps a version that is published twice (after a resume) from overwriting a file that is being read.
        final = self._folder / f"v{version:08d}-{index:04d}-{time.time_ns():x}.safetensors"
        partial = final.with_suffix(".partial")
        try:
            partial.write_bytes(data)
            partial.rename(final)
        except OSError as error:
            partial.unlink(missing_ok=True)
            if error.errno != errno.ENOSPC:
                raise
            free = shutil.disk_usage(self._folder).free
            raise WeightsError(
                f"{self._folder} is full: version {version} needs {len(data):,} bytes more and {free:,} are free. "
                f"Enlarge it (a container needs --shm-size), or free what other programs keep there."
            ) from error
        digest = hashlib.sha256(data).hexdigest()
        return WeightsFile(path=str(final), sha256=digest, num_bytes=len(data), changed=changed)


def remove_abandoned(directory: str | Path) -> int:
    """Removes the folders of writers whose process is gone; returns how many."""
    removed = 0
    for folder in Path(directory).glob(f"{_PREFIX}*"):
        try:
            # A folder this young may belong to a writer that has not locked it yet.
            if time.time() - folder.stat().st_mtime < _YOUNG_S:
                continue
            fd = os.open(folder / _LOCK_NAME, os.O_RDWR)
        except (FileNotFoundError, NotADirectoryError, PermissionError):
            continue  # just removed by its owner, or another user's
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            continue
        else:
            shutil.rmtree(folder, ignore_errors=True)
            removed += 1
        finally:
            os.close(fd)
    return removed


def _remove(files: Iterable[WeightsFile]) -> None:
    for file in files:
        Path(file.path).unlink(missing_ok=True)


def _shards(named_arrays: Iterable[tuple[str, np.ndarray]], max_bytes: int) -> Iterable[dict[str, np.ndarray]]:
    shard: dict[str, np.ndarray] = {}
    size = 0
    seen: set[str] = set()
    for name, array in named_arrays:
        if name in seen:
            raise WeightsError(f"the weight {name!r} comes twice")
        seen.add(name)
        if shard and size + array.nbytes > max_bytes:
            yield shard
            shard, size = {}, 0
        # safetensors writes the buffer as it lies in memory: a transposed view would be stored transposed, silently.
        shard[name] = np.ascontiguousarray(array).reshape(array.shape)
        size += array.nbytes
    if shard:
        yield shard
