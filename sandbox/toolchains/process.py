"""Runs one compiler process: limits, a clean environment, and its whole process group killed on timeout."""

from __future__ import annotations

import os
import signal
import subprocess
from dataclasses import dataclass
from pathlib import Path

MAX_OUTPUT_BYTES = 512 * 1024
_MEMORY_KIB = min(8 << 20, max(2 << 20, os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") // 4 >> 10))
"""A quarter of a small machine: sources compile side by side, and what one of them needs is a twentieth of that."""
_MAX_FILE_BYTES = 256 << 20
"""Of what candidates make; what is larger is refused anyway, and one has up to thirty sources."""


@dataclass(frozen=True, slots=True)
class Ran:
    """What a compiler process did; `exit_code` is None when it was killed at its time limit."""

    exit_code: int | None
    output: str


def run_limited(command: list[str], *, cwd: Path, timeout_s: float, max_file_bytes: int = _MAX_FILE_BYTES) -> Ran:
    """Runs `command` in `cwd` with bounded time, address space and file size; stdout and stderr are one text.

    The command is a session of its own, so that cc1plus, as and ld die with it. Raises OSError only where a process
    cannot be started at all.
    """
    first_to_go = "{ echo 1000 > /proc/self/oom_score_adj; } 2>/dev/null"  # rather than who trains on this machine
    bounds = {"c": 0, "t": int(timeout_s) + 5, "v": _MEMORY_KIB, "f": max_file_bytes >> 10}
    limits = "; ".join([first_to_go, *(f"ulimit -{name} {value}" for name, value in bounds.items()), 'exec "$@"'])
    environment = {"PATH": os.environ.get("PATH", os.defpath), "LC_ALL": "C", "HOME": str(cwd), "TMPDIR": str(cwd)}
    with open(cwd / f"output.{os.urandom(6).hex()}", "w+b") as output:
        process = subprocess.Popen(
            ["/bin/bash", "-c", limits, "bash", *command],
            cwd=cwd,
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
        exit_code = wait_or_kill(process, timeout_s=timeout_s)
        output.seek(0)
        return Ran(exit_code, output.read(MAX_OUTPUT_BYTES).decode("utf-8", "replace"))


def wait_or_kill(process: subprocess.Popen[bytes], *, timeout_s: float) -> int | None:
    """The exit code; None where the process, a session of its own, had to be killed with its group at `timeout_s`."""
    try:
        return process.wait(timeout=max(timeout_s, 0.01))
    except subprocess.TimeoutExpired:
        return None
    finally:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()
