"""How the first process of a sandbox ends, and what an agent is told of it."""

from __future__ import annotations

import subprocess


def wait_or_kill(process: subprocess.Popen[bytes], timeout_s: float) -> None:
    """For one whose socket is closed: it kills what it started and ends by itself, unless it hangs. Blocks."""
    try:
        process.wait(timeout_s)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


def why_it_ended(*, out_of_memory: bool, memory_mb: int) -> str:
    """In words for the agent."""
    if out_of_memory:
        return f"out of memory: the limit is {memory_mb} MB, files in /tmp included"
    return "its main process ended"
