"""QuietLease: registered processes stand still while something is timed, for machines with few cores.

    holder ──"freeze"──► helper ──SIGSTOP──► registered processes and their children
           ◄──"ok"──────
           ──"thaw"───►         ──SIGCONT──►

The helper is a process of its own that reads a pipe: when the holder dies, however it dies, the pipe ends and the
helper resumes everything. It also resumes by itself after MAX_HOLD_S. Whoever takes the lease next resumes what a
killed helper left behind.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import select
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

MAX_HOLD_S = 60.0
_ANSWER_TIMEOUT_S = 90.0
_MAX_PASSES = 5
_SETTLE_S = 0.1


class QuietError(OSError):
    """The lease was not got, or its helper ended: nothing is said about what was to be timed."""


class QuietLease:
    """One holder's access to the quiet of a machine; all holders on it share `registry_dir`."""

    def __init__(self, registry_dir: Path | str) -> None:
        self._registry = Path(registry_dir).expanduser()
        self._registry.mkdir(parents=True, exist_ok=True)
        self._protected: set[int] = set()
        self._helper: subprocess.Popen[bytes] | None = None
        self._lock = threading.Lock()

    def register(self, pid: int, *, group: bool = False) -> None:
        """From now on `pid` and its children (or the process group `pid`) stand still while anyone holds the lease.

        Raises ProcessLookupError if there is no such process.
        """
        process = all_processes().get(pid)
        if process is None:
            raise ProcessLookupError(f"there is no process {pid} to register")
        entry = self._registry / f"{'group' if group else 'tree'}-{pid}"
        part = entry.with_suffix(f".{os.getpid()}")
        part.write_text(str(process.started))
        os.replace(part, entry)

    def unregister(self, pid: int) -> None:
        for kind in ("tree", "group"):
            (self._registry / f"{kind}-{pid}").unlink(missing_ok=True)

    def protect(self, pid: int) -> None:
        """Never freeze `pid` and its children, whatever is registered: the processes that are timed."""
        self._protected.add(pid)

    def unprotect(self, pid: int) -> None:
        self._protected.discard(pid)

    @contextlib.contextmanager
    def hold(self) -> Iterator[int]:
        """Freezes inside the block; yields the number of processes that were stopped.

        Never stops the holder or a process above it. Raises QuietError if another holder does not let go.
        """
        with self._lock:
            try:
                answer = self._ask({"freeze": sorted(self._protected)})
                yield int(answer["frozen"])
            finally:
                self._release()

    def close(self) -> None:
        with self._lock:
            self._end_helper()

    def _release(self) -> None:
        try:
            self._ask({"thaw": True})
        except OSError:  # the helper is gone: resume in its place
            self._end_helper()
            with open(self._registry / "lock", "w") as lock:
                fcntl.flock(lock, fcntl.LOCK_EX)
                resume_left_behind(self._registry)

    def _ask(self, message: dict[str, Any]) -> dict[str, Any]:
        helper = self._helper
        if helper is None or helper.poll() is not None:
            if "thaw" in message:
                raise QuietError("the helper is gone")
            helper = self._helper = self._start_helper()
        assert helper.stdin is not None and helper.stdout is not None
        try:
            helper.stdin.write(json.dumps(message).encode() + b"\n")
            helper.stdin.flush()
        except BrokenPipeError as error:
            raise QuietError("the quiet helper ended") from error
        if not select.select([helper.stdout], [], [], _ANSWER_TIMEOUT_S)[0]:
            raise QuietError(
                f"the quiet lease in {self._registry} was not got in {_ANSWER_TIMEOUT_S:g} s; another judge holds it"
            )
        line = helper.stdout.readline()
        if not line:
            raise QuietError("the quiet helper ended")
        return json.loads(line)

    def _start_helper(self) -> subprocess.Popen[bytes]:
        self._registry.mkdir(parents=True, exist_ok=True)  # one in which nobody was registered may have been removed
        command = [
            sys.executable,
            "-I",
            "-S",
            "-B",
            str(Path(__file__).resolve()),
            str(self._registry),
            str(os.getpid()),
        ]
        return subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, start_new_session=True)

    def _end_helper(self) -> None:
        helper, self._helper = self._helper, None
        if helper is None:
            return
        for pipe in (helper.stdin, helper.stdout):
            if pipe is not None:
                with contextlib.suppress(BrokenPipeError):
                    pipe.close()
        try:
            helper.wait(timeout=5)
        except subprocess.TimeoutExpired:
            helper.kill()
            helper.wait()


@dataclass(frozen=True, slots=True)
class _Process:
    parent: int
    group: int
    started: int
    """Clock ticks after boot; with the pid it names a process for good."""
    state: str


def all_processes() -> dict[int, _Process]:
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
        found[int(name)] = _Process(int(fields[1]), int(fields[2]), int(fields[19]), fields[0])
    return found


def _trees(roots: set[int], processes: dict[int, _Process]) -> set[int]:
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


def registered_processes(registry: Path, processes: dict[int, _Process]) -> set[int]:
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


def _helper(registry: Path, holder: int) -> None:
    """Life of the helper: freeze and thaw by command, thaw at the end of the pipe."""
    for ignored in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(ignored, signal.SIG_IGN)
    with open(registry / "lock", "w") as lock:
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
    _helper(Path(sys.argv[1]), int(sys.argv[2]))
