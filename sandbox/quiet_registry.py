"""The folders in which processes register for the quiet lease: one a run, removed with it, or by a later run."""

from __future__ import annotations

import contextlib
import fcntl
import os
import re
import shutil
import tempfile
import time
import uuid
from pathlib import Path

from sandbox.quiet_helper import all_processes, registered_processes, resume_left_behind

_PREFIX = "jaxagent-quiet-"
_OF_A_RUN = re.compile(re.escape(_PREFIX) + r".+-[0-9a-f]{8}")
_OWNER = "owner"
_YOUNG_S = 600.0
"""On a machine of the run that is not its driver's, a registry is empty until the first process registers."""


def new_registry(name: str, parent: Path | None = None) -> Path:
    """A registry of the run's own: another run on this machine neither freezes ours nor is frozen by it.

    `parent`: where registries lie; None is the system's place for temporary files, on every machine of a run.
    """
    registry = Path(parent or tempfile.gettempdir()) / f"{_PREFIX}{name}-{uuid.uuid4().hex[:8]}"
    registry.mkdir(parents=True)
    (registry / _OWNER).write_text(f"{os.getpid()} {all_processes()[os.getpid()].started} {_namespace()}")
    return registry


def remove_registry(registry: Path) -> None:
    shutil.rmtree(registry, ignore_errors=True)


def remove_abandoned(parent: Path | None = None) -> int:
    """Removes registries of runs whose driver and registered processes are all gone; returns how many that were."""
    removed = 0
    for registry in Path(parent or tempfile.gettempdir()).glob(f"{_PREFIX}*"):
        # It may vanish meanwhile, belong to another user, or be held by a judge (then its lock is taken).
        with contextlib.suppress(FileNotFoundError, PermissionError, BlockingIOError):
            if _OF_A_RUN.fullmatch(registry.name) and not _in_use(registry):
                with (registry / "lock").open("w") as lock:
                    fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                    resume_left_behind(registry)
                    remove_registry(registry)
                    removed += not registry.exists()
    return removed


def _in_use(registry: Path) -> bool:
    if time.time() - registry.stat().st_mtime < _YOUNG_S:
        return True
    there = all_processes()
    owner = registry / _OWNER
    if owner.exists():
        pid, started, namespace = owner.read_text().split()
        if namespace != _namespace():
            return True  # its processes have other numbers here, so nothing can be said of them
        if int(pid) in there and there[int(pid)].started == int(started):
            return True
    return bool(registered_processes(registry, there))


def _namespace() -> str:
    return os.readlink("/proc/self/ns/pid")
