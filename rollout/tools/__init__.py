"""Tools of the agent loop: small classes over a Sandbox, and the boxes in which a dialogue gets them."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

from rollout.tools.base import Files, Tool, ToolBox, ToolError
from rollout.tools.files import Edit, MultiEdit, Read, Write
from rollout.tools.judging import Ask, judge_tools, nobody
from rollout.tools.meter import MeteredSandbox
from rollout.tools.notes import NotebookEdit, TodoWrite
from rollout.tools.schema import Parameter, ToolSchema
from rollout.tools.search import Glob, Grep
from rollout.tools.shell import Bash, BashOutput, Jobs, KillBash
from sandbox.types import Judgement, Sandbox

__all__ = ["Files", "Parameter", "Tool", "ToolBox", "ToolError", "ToolSchema", "agent_tools", "answer_tools"]


def agent_tools(
    sandbox: Sandbox,
    *,
    timeout_s: float,
    max_chars: int,
    full: bool = True,
    home: str = "",
    max_sandbox_s: float = math.inf,
    ask: Ask = nobody,
    judgements: Sequence[Judgement] = (),
    raise_failure: Callable[[], None] = lambda: None,
) -> ToolBox:
    """The tools of an agentic dialogue: all of them, or with `full` False the four that a small model can learn.

    `timeout_s` limits one command, `max_sandbox_s` all of them together, `max_chars` one observation. `ask` answers
    compile, verify and profile; the rest is what Files and ToolBox take.
    """
    sandbox = meter = MeteredSandbox(sandbox, seconds=max_sandbox_s)
    files = Files(sandbox, read_before_write=True, home=home)
    jobs = Jobs(sandbox) if full else None
    tools: list[Tool] = [Bash(sandbox, timeout_s=timeout_s, jobs=jobs), Read(files), Write(files), Edit(files)]
    if jobs is not None:
        tools += [BashOutput(jobs), KillBash(jobs), MultiEdit(files), Glob(sandbox), Grep(sandbox)]
        tools += [NotebookEdit(files), TodoWrite(), *judge_tools(ask)]
    return ToolBox(tools, max_chars=max_chars, judgements=judgements, raise_failure=raise_failure, meter=meter)


def answer_tools(sandbox: Sandbox, *, max_chars: int) -> ToolBox:
    """The one tool of a single-turn dialogue. Nothing can be read there, so nothing has to be read first."""
    return ToolBox([Write(Files(sandbox, read_before_write=False))], max_chars=max_chars)
