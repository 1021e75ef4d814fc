"""Temporary workdirs that are removed in the end, also those of a process that was killed: by the next one."""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import logging
import os
import tempfile
import time
from collections.abc import AsyncIterator
from pathlib import Path

from sandbox.backends.files import remove_tree

logger = logging.getLogger(__name__)
_PREFIX = "jaxagent-workdir-"
_LOCK = "lock"
_YOUNG_S = 60.0
"""Between its creation and its lock a folder looks abandoned."""


@contextlib.asynccontextmanager
async def temporary_workdir(parent: Path | None) -> AsyncIterator[Path]:
    """A path at which nothing is yet, in a folder of its own below `parent` (None: the system's place)."""
    root, lock = await asyncio.to_thread(_create, parent)
    try:
        yield root / "workdir"
    finally:
        await asyncio.to_thread(remove_tree, root)
        os.close(lock)
        if root.exists():
            logger.warning("the workdir %s could not be removed; remove it by hand", root)


def remove_abandoned(parent: Path | None) -> int:
    """Removes what killed processes left below `parent`; returns how many workdirs that were."""
    removed = 0
    for root in Path(parent or tempfile.gettempdir()).glob(f"{_PREFIX}*"):
        with contextlib.suppress(FileNotFoundError, PermissionError):  # its owner removes it, or it is another user's
            if time.time() - root.stat().st_mtime < _YOUNG_S:
                continue
            lock = os.open(root / _LOCK, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                remove_tree(root)
                removed += 1
            except BlockingIOError:
                continue  # in use: the lock lives as long as its process
            finally:
                os.close(lock)
    return removed


def _create(parent: Path | None) -> tuple[Path, int]:
    if parent is not None:
        parent.mkdir(parents=True, exist_ok=True)
    root = Path(tempfile.mkdtemp(prefix=_PREFIX, dir=parent))
    lock = os.open(root / _LOCK, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    fcntl.flock(lock, fcntl.LOCK_EX)
    return root, lock
