"""The helper of a quiet lease: stops registered processes and their children, and lets them go on.

    python3 -I -S -B quiet_helper.py REGISTRY HOLDER      commands on stdin and answers on stdout, a line of JSON each

A process of its own, which uses the standard library only: it has to live on when its holder is killed.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import select
import signal
import sys
import time
from dataclasses import dataclass
from pathlib import Path

LOCK = "lock"
"""File of the registry: locked by whoever freezes, shared by those who are not to be frozen."""
MAX_HOLD_S = 60.0
_MAX_PASSES = 5
_SETTLE_S = 0.1


@dataclass(frozen=True, slots=True)
class Process:
    parent: int
    group: int
    started: int
    """Clock ticks after boot; with the pid it names a process for good."""
    state: str


def all_processes() -> dict[int, Process]:
    """Every process of the machine."""
    found = {}
    for name in os.listdir("/proc"):
        if not name.isdigit():
            continue
        try:
            with open(f"/proc/{name}/stat") as stat:
                fields = stat.read().rpartition(")")[2].split()
        except (FileNotFoundError, ProcessLookupError):
            continue
        found[int(name)] = Process(int(fields[1]), int(fields[2]), int(fields[19]), fields[0])
    return found


def _trees(roots: set[int], processes: dict[int, Process]) -> set[int]:
    """The roots and all below them."""
    children: dict[int, list[int]] = {}
    for pid, process in processes.items():
        children.setdefault(process.parent, []).append(pid)
    reached, waiting = set(), [pid for pid in roots if pid in processes]
    while waiting:
        pid = waiting.pop()
        if pid not in reached:
            reached.add(pid)
            waiting += children.get(pid, [])
    return reached


def registered_processes(registry: Path, processes: dict[int, Process]) -> set[int]:
    """Pids to freeze; entries of processes that are gone are removed."""
    roots = set()
    for entry in registry.iterdir():
        kind, _, number = entry.name.partition("-")
        if kind not in ("tree", "group") or not number.isdigit():
            continue
        pid = int(number)
        process = processes.get(pid)
        try:
            started = entry.read_text()
        except FileNotFoundError:  # unregistered since the folder was listed
            continue
        if process is None or started != str(process.started):
            entry.unlink(missing_ok=True)
        elif kind == "tree":
            roots.add(pid)
        else:
            roots |= {member for member, other in processes.items() if other.group == pid}
    return _trees(roots, processes)


def _freeze(registry: Path, holder: int, protected: list[int]) -> list[tuple[int, int]]:
    """Stops what is registered, in passes until nothing new appears; what it stopped, also written to a file."""
    frozen: list[tuple[int, int]] = []
    for _ in range(_MAX_PASSES):
        processes = all_processes()
        spared = _trees(set(protected), processes) | {os.getpid()}
        above = holder
        while above in processes:
            spared.add(above)
            above = processes[above].parent
        fresh = [
            (pid, processes[pid].started)
            for pid in registered_processes(registry, processes) - spared
            if processes[pid].state not in "TtZX"
        ]
        if not fresh:
            break
        frozen += fresh
        _record(registry, frozen)
        for pid, _ in fresh:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGSTOP)
        _wait_stopped({pid for pid, _ in fresh})
    return frozen


def _wait_stopped(pids: set[int]) -> None:
    deadline = time.monotonic() + _SETTLE_S
    while time.monotonic() < deadline:
        processes = all_processes()
        if all(pid not in processes or processes[pid].state in "TtZX" for pid in pids):
            return
        time.sleep(0.001)


def _thaw(registry: Path, frozen: list[tuple[int, int]]) -> None:
    processes = all_processes()
    for pid, started in frozen:
        if pid in processes and processes[pid].started == started:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGCONT)
    (registry / "frozen.json").unlink(missing_ok=True)


def _record(registry: Path, frozen: list[tuple[int, int]]) -> None:
    part = registry / "frozen.part"
    part.write_text(json.dumps(frozen))
    os.replace(part, registry / "frozen.json")


def resume_left_behind(registry: Path) -> None:
    """Resumes what a killed helper left stopped; the caller has the lock."""
    with contextlib.suppress(FileNotFoundError):
        _thaw(registry, [(pid, started) for pid, started in json.loads((registry / "frozen.json").read_text())])


def serve(registry: Path, holder: int) -> None:
    """Life of the helper: freeze and thaw by command, thaw at the end of the pipe."""
    for ignored in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(ignored, signal.SIG_IGN)
    with open(registry / LOCK, "w") as lock:
        frozen: list[tuple[int, int]] | None = None
        pending = b""
        while True:
            ready = select.select([0], [], [], MAX_HOLD_S if frozen is not None else None)[0]
            data = os.read(0, 65536) if ready else b'{"thaw": false}\n'
            pending += data
            if (not data or b'"thaw"' in pending) and frozen is not None:
                _thaw(registry, frozen)
                frozen = None
                fcntl.flock(lock, fcntl.LOCK_UN)
            if not data:
                return
            while b"\n" in pending:
                line, _, pending = pending.partition(b"\n")
                message = json.loads(line)
                if "freeze" in message:
                    fcntl.flock(lock, fcntl.LOCK_EX)
                    resume_left_behind(registry)
                    frozen = []
                    frozen = _freeze(registry, holder, message["freeze"])
                    os.write(1, json.dumps({"frozen": len(frozen)}).encode() + b"\n")
                elif message["thaw"]:
                    os.write(1, b'{"thawed": true}\n')


if __name__ == "__main__":
    serve(Path(sys.argv[1]), int(sys.argv[2]))
