"""A workdir's files without a shell: where a single-turn answer's writes go, on the host, with nothing executed."""

from __future__ import annotations

from pathlib import Path

from sandbox.backends.files import Workdir, hand_over
from sandbox.backends.shell import WRITABLE
from sandbox.types import ExecResult


class WorkdirFiles:
    """A Sandbox whose shell is closed; its files follow the same rules as those of one with a shell."""

    def __init__(self, workdir: Path) -> None:
        self._files = Workdir(workdir, protected=hand_over(workdir, None, WRITABLE))

    async def exec(self, command: str, *, timeout_s: float, session: str = "main") -> ExecResult:
        raise PermissionError("nothing is executed in a single-turn dialogue")

    async def read_file(self, path: str) -> str:
        return self._files.read(path)

    async def write_file(self, path: str, text: str) -> None:
        self._files.write(path, text)

    async def close(self) -> None:
        self._files.close()
