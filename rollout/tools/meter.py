"""How long the commands of one dialogue may run in its sandbox, all of them together."""

from __future__ import annotations

from sandbox.types import ExecResult, Sandbox


class MeteredSandbox:
    """A Sandbox that adds up the seconds its commands take and gives each at most what is left.

    A command that waits for the judge, or is frozen while a kernel is timed, takes no time: see ShellSandbox.exec. What
    runs in the background is not counted, its start is.
    """

    def __init__(self, sandbox: Sandbox, *, seconds: float) -> None:
        self._sandbox = sandbox
        self._seconds = seconds
        self.used_s = 0.0

    @property
    def exhausted(self) -> bool:
        return self.used_s >= self._seconds

    async def exec(self, command: str, *, timeout_s: float, session: str = "main") -> ExecResult:
        """As the sandbox's own. Once the time is used up no command is run, and the result says so."""
        left_s = self._seconds - self.used_s
        if left_s <= 0:
            return ExecResult(exit_code=None, output=self._over)
        result = await self._sandbox.exec(command, timeout_s=min(timeout_s, left_s), session=session)
        self.used_s += result.seconds
        if result.exit_code is None and left_s <= timeout_s:
            self.used_s = max(self.used_s, self._seconds)  # clocks that differ by a little must not leave a rest
        return result

    async def read_file(self, path: str) -> str:
        return await self._sandbox.read_file(path)

    async def write_file(self, path: str, text: str) -> None:
        await self._sandbox.write_file(path, text)

    async def close(self) -> None:
        await self._sandbox.close()

    @property
    def _over(self) -> str:
        return f"[timed out: this dialogue's {self._seconds:g} s of sandbox time are used up]"
