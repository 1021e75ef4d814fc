"""Times of torch eager and torch.compile on this machine, kept on disk by task content.

A file a task and machine, written atomically under a lock, so that two processes never measure the same baseline and
never read half a file. What identifies a baseline: the task's code, the processor, the number of cores used, the
versions of torch and of this protocol.
"""

from __future__ import annotations

import fcntl
import hashlib
import importlib.metadata
import json
import os
import platform
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from functools import cache
from pathlib import Path
from typing import Any

from sandbox.types import Task

PROTOCOL_VERSION = 2
"""Raise it when the way of timing changes: older files are then measured again."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Baseline:
    """Medians in milliseconds, their spreads, and what measuring cost."""

    eager_ms: float
    compile_ms: float
    eager: dict[str, Any]
    compile: dict[str, Any]
    compile_s: float
    """Seconds until torch.compile had compiled the task."""
    seconds: float


class BaselineStore:
    """Baselines of one machine and one number of threads."""

    def __init__(self, folder: Path, *, threads: int, gpu: str = "") -> None:
        """`gpu`: name and driver of the GPU that is timed, "" where it is the CPU."""
        self._folder = folder / "times"
        self._folder.mkdir(parents=True, exist_ok=True)
        self._threads = threads
        self._machine = f"{machine_fingerprint()}; {gpu}" if gpu else machine_fingerprint()
        self._known: dict[str, Baseline] = {}

    def has(self, task: Task) -> bool:
        return self._load(self._key(task)) is not None

    def get_or_measure(self, task: Task, measure: Callable[[], Baseline], *, fresh: bool = False) -> Baseline:
        """The stored baseline, or the result of `measure`; while one process measures, others wait for its file.

        `fresh` measures again although a file is there.
        """
        key = self._key(task)
        if not fresh and (found := self._load(key)) is not None:
            return found
        with self._locked(key):
            if not fresh and (found := self._load(key)) is not None:
                return found
            baseline = measure()
            self._write(key, task, baseline)
        self._known[key] = baseline
        return baseline

    def _key(self, task: Task) -> str:
        parts = [task.code, self._machine, str(self._threads), str(PROTOCOL_VERSION)]
        return hashlib.sha256("\0".join(parts).encode()).hexdigest()[:32]

    def _load(self, key: str) -> Baseline | None:
        if key in self._known:
            return self._known[key]
        path = self._folder / f"{key}.json"
        if not path.exists():
            return None
        record = json.loads(path.read_text())
        baseline = Baseline(**{name: record[name] for name in Baseline.__slots__})
        self._known[key] = baseline
        return baseline

    def _write(self, key: str, task: Task, baseline: Baseline) -> None:
        record = {
            "task_id": task.task_id,
            "machine": self._machine,
            "threads": self._threads,
            "protocol_version": PROTOCOL_VERSION,
        } | asdict(baseline)
        with tempfile.NamedTemporaryFile("w", dir=self._folder, suffix=".part", delete=False) as part:
            json.dump(record, part, indent=1)
            part.flush()
            os.fsync(part.fileno())
        os.replace(part.name, self._folder / f"{key}.json")

    @contextmanager
    def _locked(self, key: str) -> Iterator[None]:
        """Held through the file's descriptor: the kernel frees it when a process dies."""
        with open(self._folder / f"{key}.lock", "w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            yield


@cache
def machine_fingerprint() -> str:
    """Processor model, number of cores, architecture and torch version."""
    model = platform.processor()
    with open("/proc/cpuinfo") as cpuinfo:
        for line in cpuinfo:
            name, _, value = line.partition(":")
            if name.strip() in ("model name", "Model", "CPU part"):
                model = value.strip()
                break
    return f"{model}; {os.cpu_count()} cores; {platform.machine()}; torch {importlib.metadata.version('torch')}"
