"""bash, bash_output, kill_bash: one persistent shell, and commands left running behind it."""

from __future__ import annotations

import shlex

from rollout.tools.base import ToolError
from rollout.tools.schema import Parameter, ToolSchema
from sandbox.types import ExecResult, Sandbox

HELPER_SESSION = "tools"
"""Shell session of the tools themselves: its directory stays the workdir whatever the model does in its own."""

_HELPER_TIMEOUT_S = 15.0
_JOB_ID = Parameter("job_id", "string", "Number that bash returned for the background command.")


class Bash:
    schema = ToolSchema(
        "bash",
        "Runs a command in a persistent bash: directory and variables stay from call to call.",
        (
            Parameter("command", "string", "The command."),
            Parameter("timeout_s", "integer", "Seconds after which it is killed.", required=False),
            Parameter("background", "boolean", "Return at once; see bash_output and kill_bash.", required=False),
        ),
    )

    def __init__(self, sandbox: Sandbox, *, timeout_s: float, jobs: Jobs | None = None) -> None:
        """`timeout_s` is the default and the largest time of one command. Without `jobs` none runs in background."""
        self._sandbox = sandbox
        self._timeout_s = timeout_s
        self._jobs = jobs

    async def run(self, *, command: str, timeout_s: int | None = None, background: bool = False) -> str:
        if not command.strip():
            raise ToolError("command is empty")
        if background:
            if self._jobs is None:
                raise ToolError("background commands are not available here")
            return await self._jobs.start(command)
        if timeout_s is not None and timeout_s < 1:
            raise ToolError("timeout_s must be at least 1")
        limit_s = self._timeout_s if timeout_s is None else min(float(timeout_s), self._timeout_s)
        return describe_result(await self._sandbox.exec(command, timeout_s=limit_s), limit_s=limit_s)


class BashOutput:
    schema = ToolSchema("bash_output", "Shows what a background command printed since the last call.", (_JOB_ID,))

    def __init__(self, jobs: Jobs) -> None:
        self._jobs = jobs

    async def run(self, *, job_id: str) -> str:
        return await self._jobs.output(job_id)


class KillBash:
    schema = ToolSchema("kill_bash", "Ends a background command and its children.", (_JOB_ID,))

    def __init__(self, jobs: Jobs) -> None:
        self._jobs = jobs

    async def run(self, *, job_id: str) -> str:
        return await self._jobs.kill(job_id)


class Jobs:
    """Background commands of one sandbox. Their output lies in the workdir's .jobs folder, so its disk limit holds."""

    def __init__(self, sandbox: Sandbox) -> None:
        self._sandbox = sandbox
        self._root: str | None = None
        self._offsets: dict[str, int] = {}

    async def start(self, command: str) -> str:
        if self._root is None:
            where = await self._helper("mkdir -p .jobs && pwd")
            if where.exit_code != 0:
                raise ToolError(f"cannot create .jobs in the workdir: {where.output.strip()}")
            self._root = where.output.strip()
        job_id = str(len(self._offsets) + 1)
        base = f"{self._root}/.jobs/{job_id}"
        # A process group of its own (set -m), so that kill_bash reaches its children and nothing else.
        inner = f"bash -c {shlex.quote(command)}; echo $? > {shlex.quote(base + '.rc')}"
        line = (
            f"set -m; ({inner}) > {shlex.quote(base + '.out')} 2>&1 < /dev/null & "
            f"echo $! > {shlex.quote(base + '.pid')}; disown; set +m"
        )
        started = await self._sandbox.exec(line, timeout_s=_HELPER_TIMEOUT_S)
        if started.exit_code != 0:
            raise ToolError(f"the command could not be started: {started.output.strip()}")
        self._offsets[job_id] = 0
        return f"started in background, job_id {job_id}"

    async def output(self, job_id: str) -> str:
        offset = self._offset(job_id)
        new = await self._helper(f"tail -c +{offset + 1} .jobs/{job_id}.out | head -c 20000")
        self._offsets[job_id] = offset + len(new.output.encode("utf-8", "surrogateescape"))
        state = await self._helper(
            f"if [ -s .jobs/{job_id}.rc ]; then echo exit $(cat .jobs/{job_id}.rc); "
            f"elif kill -0 -- -$(cat .jobs/{job_id}.pid) 2>/dev/null; then echo running; else echo killed; fi"
        )
        return f"{new.output.rstrip()}\n[{state.output.strip()}]".lstrip("\n")

    async def kill(self, job_id: str) -> str:
        self._offset(job_id)
        group = f"-- -$(cat .jobs/{job_id}.pid) 2>/dev/null"
        await self._helper(f"kill -TERM {group} && sleep 0.2; kill -KILL {group}; true")
        return f"killed job {job_id}"

    def _offset(self, job_id: str) -> int:
        if job_id not in self._offsets:
            known = ", ".join(self._offsets) or "none"
            raise ToolError(f"no background command has job_id {job_id!r}; there are: {known}")
        return self._offsets[job_id]

    async def _helper(self, command: str) -> ExecResult:
        return await self._sandbox.exec(command, timeout_s=_HELPER_TIMEOUT_S, session=HELPER_SESSION)


def describe_result(result: ExecResult, *, limit_s: float) -> str:
    """Output, then in brackets what the model would otherwise not see. Sandboxes mark cut output themselves."""
    parts = [result.output.rstrip()] if result.output.strip() else []
    if result.exit_code is None and "timed out" not in result.output[-200:]:
        parts.append(f"[timed out after {limit_s:g} s and was killed]")
    elif result.exit_code:
        parts.append(f"[exit {result.exit_code}]")
    return "\n".join(parts) or "[no output]"
