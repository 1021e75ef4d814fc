"""Bounds of a worker process: its own session, fewer privileges, limits, and nothing open but its channel."""

from __future__ import annotations

import contextlib
import ctypes
import itertools
import os
import resource
import signal
from dataclasses import dataclass

_PR_SET_PDEATHSIG, _PR_SET_NO_NEW_PRIVS = 1, 38
_CLONE_NEWNET, _CLONE_NEWIPC = 0x40000000, 0x08000000
_DRIVER_FILE_BYTES = 64 << 20
"""A CUDA driver keeps small files in memory of its own; the candidate's user may write nowhere else."""
_LIBC = ctypes.CDLL(None, use_errno=True)
_user_ids = itertools.count()


@dataclass(frozen=True, slots=True, kw_only=True)
class Bounds:
    """What a forked worker is confined to."""

    cores: list[int]
    memory_bytes: int
    """Beyond what the process has mapped when it is forked."""
    uid: int | None
    """Drop to this user; None where the judge itself is unprivileged."""
    write_files: bool
    cpu_s: int | None = None
    device: str = "cpu"


def isolate_network() -> bool:
    """Takes this process, and all it forks, off every network. False where the kernel does not allow it."""
    return _LIBC.unshare(_CLONE_NEWNET | _CLONE_NEWIPC) == 0


def die_with_parent() -> None:
    _LIBC.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)


def confine(bounds: Bounds, *, keep: list[int]) -> None:
    """Applied in the child right after the fork; `keep` are the descriptors that stay open."""
    os.sched_setaffinity(0, bounds.cores)
    _close_others(keep)
    _limit(resource.RLIMIT_CORE, 0)
    if bounds.device == "cpu":
        _limit(resource.RLIMIT_NOFILE, 256)
        _limit(resource.RLIMIT_AS, _address_space() + bounds.memory_bytes)
    else:  # a CUDA context reserves more addresses than any machine has memory; what is writable is limited instead
        _limit(resource.RLIMIT_NOFILE, 1024)
        _limit(resource.RLIMIT_DATA, _address_space() + bounds.memory_bytes)
    if bounds.cpu_s is not None:
        _limit(resource.RLIMIT_CPU, bounds.cpu_s)
    if not bounds.write_files:
        _limit(resource.RLIMIT_FSIZE, 0 if bounds.device == "cpu" else _DRIVER_FILE_BYTES)
    if bounds.uid is not None:
        _limit(resource.RLIMIT_NPROC, 512)
        os.setgroups([])
        os.setresgid(bounds.uid, bounds.uid, bounds.uid)
        os.setresuid(bounds.uid, bounds.uid, bounds.uid)
    _LIBC.prctl(_PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0)
    die_with_parent()  # after the change of user, which clears it


def free_uid() -> int:
    """A user of one worker's own, so that two can neither see nor signal each other."""
    with open("/proc/self/uid_map") as uid_map:
        largest = max(int(line.split()[0]) + int(line.split()[2]) - 1 for line in uid_map)
    first = min(200_000, largest - 40_000)  # containers often map 65,536 users only
    return first + (os.getpid() * 16 + next(_user_ids)) % 32_000


def kill_user(uid: int) -> int:
    """Kills every process of a user that exists for one worker only; returns how many there were."""
    killed = 0
    for entry in os.listdir("/proc"):
        if not entry.isdigit():
            continue
        with contextlib.suppress(OSError):  # it ended meanwhile
            if _real_uid(int(entry)) == uid:
                os.kill(int(entry), signal.SIGKILL)
                killed += 1
    return killed


def _real_uid(pid: int) -> int:
    with open(f"/proc/{pid}/status") as status:
        for line in status:
            if line.startswith("Uid:"):
                return int(line.split()[1])
    return -1


def _limit(which: int, value: int) -> None:
    _, hard = resource.getrlimit(which)
    bound = value if hard == resource.RLIM_INFINITY else min(value, hard)
    resource.setrlimit(which, (bound, bound))


def _address_space() -> int:
    with open("/proc/self/statm") as statm:
        return int(statm.read().split()[0]) * resource.getpagesize()


def _close_others(keep: list[int]) -> None:
    kept = sorted({0, 1, 2, *keep})
    for low, high in zip(kept, [*kept[1:], 4096], strict=True):
        os.closerange(low + 1, high)
