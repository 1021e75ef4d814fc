"""The `files` backend: a workdir's files without a shell, on the host, with nothing executed.

A single-turn answer's writes go here, and the dialogues of a measurement that is about something else than shells.
"""

from __future__ import annotations

import contextlib
from pathlib import Path

from sandbox.backends.files import Workdir, hand_over
from sandbox.backends.shell import WRITABLE
from sandbox.types import ExecResult


class FilesSandbox:
    """A Sandbox whose shell is closed; its files follow the same rules as those of one with a shell."""

    def __init__(self, workdir: Path) -> None:
        self.workdir = workdir
        self.home = str(workdir)
        self._files = Workdir(workdir, protected=hand_over(workdir, None, WRITABLE))

    async def exec(self, command: str, *, timeout_s: float, session: str = "main") -> ExecResult:
        raise PermissionError("nothing is executed in a dialogue without a shell")

    async def read_file(self, path: str) -> str:
        return self._files.read(path)

    async def write_file(self, path: str, text: str) -> None:
        self._files.write(path, text)

    def hold_clock(self) -> contextlib.nullcontext[None]:
        """No command runs whose time could be held."""
        return contextlib.nullcontext()

    def process_ids(self) -> list[int]:
        return []

    async def close(self) -> None:
        self._files.close()
