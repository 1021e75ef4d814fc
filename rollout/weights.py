"""Weights on their way from the learner to an engine on the same machine: safetensors files in shared memory.

A `WeightsPackage` is what crosses the process boundary: version, paths, sizes and checksums, never the weights
themselves. The engine's worker reads the files, hashes what it read and refuses bytes that are not the announced ones.
"""

from __future__ import annotations

import errno
import fcntl
import hashlib
import json
import os
import shutil
import tempfile
import time
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import safetensors.numpy

_PREFIX = "jaxagent-weights-"
_LOCK_NAME = "lock"
_YOUNG_S = 60.0


class WeightsError(RuntimeError):
    """Weights could not be written, or are not the ones that were announced."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WeightsFile:
    """One safetensors file; `sha256` is of all of its bytes, header included."""

    path: str
    sha256: str
    num_bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class WeightsPackage:
    """Every parameter of one version of the policy, under Hugging Face names."""

    version: int
    files: list[WeightsFile]

    @property
    def num_bytes(self) -> int:
        return sum(file.num_bytes for file in self.files)

    @property
    def sha256(self) -> str:
        """One digest of the whole package, for logs and for comparing engines with each other."""
        return hashlib.sha256("".join(file.sha256 for file in self.files).encode()).hexdigest()


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

    @property
    def folder(self) -> Path:
        return self._folder

    def write(self, named_arrays: Iterable[tuple[str, np.ndarray]], *, version: int) -> WeightsPackage:
        """Writes (name, array) pairs, one file per `max_file_bytes`, so at most that much is copied at a time.

        Raises WeightsError when the folder is full; nothing of the package then stays behind.
        """
        files: list[WeightsFile] = []
        try:
            for shard in _shards(named_arrays, self._max_file_bytes):
                files.append(self._write_file(shard, version=version, index=len(files)))
        except BaseException:
            for file in files:
                Path(file.path).unlink(missing_ok=True)
            raise
        if not files:
            raise WeightsError(f"version {version} has no weights: the iterator of named arrays was empty")
        package = WeightsPackage(version=version, files=files)
        self._packages.append(package)
        for old in self._packages[: -self._keep]:
            for file in old.files:
                Path(file.path).unlink(missing_ok=True)
        self._packages = self._packages[-self._keep :]
        return package

    def close(self) -> None:
        """Removes every package; safe to call twice."""
        if self._lock_fd >= 0:
            shutil.rmtree(self._folder, ignore_errors=True)
            os.close(self._lock_fd)
            self._lock_fd = -1

    def _write_file(self, arrays: dict[str, np.ndarray], *, version: int, index: int) -> WeightsFile:
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
        return WeightsFile(path=str(final), sha256=hashlib.sha256(data).hexdigest(), num_bytes=len(data))


def read_layout(paths: Iterable[str | Path]) -> dict[str, tuple[int, ...]]:
    """Names and shapes in safetensors files, read from their headers alone.

    Raises WeightsError where a file is missing, is no safetensors file, or a name stands in two of them.
    """
    layout: dict[str, tuple[int, ...]] = {}
    for path in paths:
        try:
            with open(path, "rb") as stream:
                header = json.loads(stream.read(int.from_bytes(stream.read(8), "little")))
        except OSError as error:
            raise WeightsError(f"{path} cannot be read: {error.strerror}") from error
        except (ValueError, MemoryError, OverflowError) as error:
            raise WeightsError(f"{path} is not a safetensors file: its header cannot be read ({error})") from error
        for name, entry in header.items():
            if name == "__metadata__":
                continue
            if name in layout:
                raise WeightsError(f"{path}: {name!r} stands in an earlier file as well")
            layout[name] = tuple(entry["shape"])
    return layout


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
