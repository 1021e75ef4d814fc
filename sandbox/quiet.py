"""QuietLease: registered processes stand still while something is timed, for machines with few cores.

    holder ──"freeze"──► helper ──SIGSTOP──► registered processes and their children
           ◄──"ok"──────
           ──"thaw"───►         ──SIGCONT──►

The helper (quiet_helper.py) is a process of its own that reads a pipe: when the holder dies, however it dies, the pipe
ends and the helper resumes everything. It also resumes by itself after MAX_HOLD_S. Whoever takes the lease next resumes
what a killed helper left behind.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import select
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from sandbox import quiet_helper
from sandbox.quiet_helper import LOCK, all_processes, resume_left_behind

_ANSWER_TIMEOUT_S = 90.0


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

    @contextlib.contextmanager
    def awake(self) -> Iterator[None]:
        """Nobody is frozen inside the block, which begins once nobody is. For what others wait for: if it were stopped
        in its midst, they would wait for the clock as well. Ends with the process that is in it."""
        self._registry.mkdir(parents=True, exist_ok=True)  # see _start_helper
        with open(self._registry / LOCK, "w") as lock:
            fcntl.flock(lock, fcntl.LOCK_SH)
            yield

    def close(self) -> None:
        with self._lock:
            self._end_helper()

    def _release(self) -> None:
        try:
            self._ask({"thaw": True})
        except OSError:  # the helper is gone: resume in its place
            self._end_helper()
            with open(self._registry / LOCK, "w") as lock:
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
            str(Path(quiet_helper.__file__).resolve()),
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
