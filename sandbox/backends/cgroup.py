"""Limits of a sandbox's memory and number of processes by a control group of its own, version 2 or 1.

    ROOT/jaxagent.OWNER.NUMBER.RANDOM        (version 1: one such folder in `memory` and one in `pids`)

OWNER names the process that made it, as for slots, so that what a killed one left behind is found and removed.
"""

from __future__ import annotations

import contextlib
import itertools
import secrets
import time
from pathlib import Path

from sandbox.backends.slots import is_gone, process_name

ROOT = Path("/sys/fs/cgroup")
_PREFIX = "jaxagent."
_EMPTY_S = 5.0


class Cgroup:
    """Folders that limit whatever is put into them."""

    def __init__(self, folders: list[Path]):
        self._folders = folders

    @property
    def entrances(self) -> list[Path]:
        """Files into which a process writes its number to enter."""
        return [folder / "cgroup.procs" for folder in self._folders]

    def has_killed(self) -> bool:
        """Whether the kernel has killed a process in here for want of memory."""
        for name in ("memory.events", "memory.oom_control"):
            with contextlib.suppress(OSError):
                counts = dict(line.split() for line in (self._folders[0] / name).read_text().splitlines())
                return int(counts.get("oom_kill", 0)) > 0
        return False

    def remove(self) -> None:
        """Once its processes have ended, for which it waits a little; what is left is removed by a later start."""
        deadline = time.monotonic() + _EMPTY_S
        for folder in self._folders:
            while folder.exists():
                with contextlib.suppress(OSError):
                    folder.rmdir()
                    break
                if time.monotonic() > deadline:
                    return
                time.sleep(0.01)


def make(*, memory_bytes: int, pids: int, root: Path = ROOT) -> Cgroup | None:
    """A new group with these limits; None where this user may make none."""
    name = f"{_PREFIX}{process_name()}.{next(_numbers)}.{secrets.token_hex(4)}"
    unified = (root / "cgroup.controllers").exists()
    parents = [root] if unified else [root / "memory", root / "pids"]
    made: list[Path] = []
    try:
        if unified:
            (root / "cgroup.subtree_control").write_text("+memory +pids")
        for parent in parents:
            (parent / name).mkdir()
            made.append(parent / name)
        memory, processes = made[0], made[-1]
        (memory / ("memory.max" if unified else "memory.limit_in_bytes")).write_text(str(memory_bytes))
        # memory and swap together in version 1, swap alone in version 2; the file is absent where there is no swap
        swap, value = ("memory.swap.max", 0) if unified else ("memory.memsw.limit_in_bytes", memory_bytes)
        with contextlib.suppress(FileNotFoundError):
            if (memory / swap).exists():
                (memory / swap).write_text(str(value))
        (processes / "pids.max").write_text(str(pids))
    except OSError:
        for folder in made:
            with contextlib.suppress(OSError):
                folder.rmdir()
        return None
    return Cgroup(made)


def reap(root: Path = ROOT) -> None:
    """Removes groups of processes that are gone."""
    for parent in (root, root / "memory", root / "pids"):
        for folder in parent.glob(f"{_PREFIX}*"):
            if is_gone(folder.name.removeprefix(_PREFIX).split(".")[0]):
                with contextlib.suppress(OSError):
                    folder.rmdir()


_numbers = itertools.count()
