"""The far end of a sandbox: owns the bash sessions, and as process 1 of a container everything they leave behind.

Run as `python3 -I -S -B shell_server ADDRESS WORKDIR [SCRATCH]`, where ADDRESS is the path of a unix socket or `fd:N`,
and SCRATCH a directory to remove at the end. This folder alone is mounted in a sandbox, in images too that hold nothing
of this project: its modules import one another by their bare names, and else the standard library only (Python >= 3.8).
This one is the host's, and says how the others are started.

Frames in both directions: 4 bytes of length (big endian), then that many bytes of JSON.

    {"op": "exec", "id": 1, "session": "main", "command": "ls", "timeout_s": 60, "max_output_bytes": 30000}
    {"op": "cancel", "session": "main"} kill its running command, whose reply nobody waits for
    {"op": "hold", "on": true}          time limits stand still while on: the command waits for something of ours
    {"op": "kill", "note": "..."}       kill every process; a running command ends with that note

A reply carries the id with exit_code, output, truncated and seconds. A frame with "op": "tick" goes out
at the start, and every second while a command runs, so that a dead far end can be told from a slow command.

How a command's end is known: bash reads `command NUL mark NUL` from a pipe of its own, and only after the command has
run does it read the mark and write it, with the exit status, to a control pipe. Neither pipe is open in the command's
children, the mark is random and not yet read while the command runs, and output travels on a third pipe. So no
output, whatever it imitates, ends a command, and a background process that keeps the output pipe open delays nothing.
"""

from __future__ import annotations

from pathlib import Path

SOURCE = Path(__file__).parent
MOUNT = "/sandbox-server"
"""Where the folder lies in a sandbox with a root of its own."""


def start_command(python: str, folder: Path | str = MOUNT) -> list[str]:
    """Its arguments follow. Nothing of the sandbox's own Python takes part but the standard library."""
    return [python, "-I", "-S", "-B", str(folder)]
