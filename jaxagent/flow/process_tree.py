"""What a program and everything it started has used of the machine: CPU seconds and memory."""

from __future__ import annotations

import contextlib
from collections import defaultdict
from collections.abc import Callable, Iterator

import psutil


def tree(root: int | None = None) -> list[psutil.Process]:
    """The process (None: this one) and all of its descendants."""
    process = psutil.Process(root)
    return [process, *process.children(recursive=True)]


def cpu_seconds(root: int | None = None) -> float:
    """User and system time of the tree so far, that of children which have ended and were waited for included."""
    total = 0.0
    for process in tree(root):
        with _gone():
            total += sum(process.cpu_times()[:4])  # user, system, children_user, children_system
    return total


def resident_bytes(root: int | None = None) -> dict[str, int]:
    """Resident memory by kind of process (its title, or the program's name), shared pages counted in each."""
    return _by_title(root, lambda process: process.memory_info().rss)


def proportional_bytes(root: int | None = None) -> dict[str, int]:
    """As resident_bytes, each shared page divided among those that share it. Reads much of /proc: not for a loop."""
    return _by_title(root, lambda process: process.memory_full_info().pss)


def title(process: psutil.Process) -> str:
    """`ray::_RolloutProcess` of a Ray worker whatever method it is in, `VLLM::EngineCore`, else the program's name."""
    first = (process.cmdline() or [""])[0]
    if "::" in first:
        return first.split(".", 1)[0].split(" ", 1)[0]
    return process.name()


def _by_title(root: int | None, size: Callable[[psutil.Process], int]) -> dict[str, int]:
    found: dict[str, int] = defaultdict(int)
    for process in tree(root):
        with _gone():
            found[title(process)] += size(process)
    return dict(found)


@contextlib.contextmanager
def _gone() -> Iterator[None]:
    with contextlib.suppress(psutil.NoSuchProcess, psutil.ZombieProcess, psutil.AccessDenied):
        yield
