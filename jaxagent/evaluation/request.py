"""What is to be evaluated, on what, and where the results go."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from jaxagent.config.run import RunConfig
from jaxagent.evaluation.policy_source import PolicySource
from sandbox.types import Task


@dataclass(frozen=True, slots=True, kw_only=True)
class EvaluationRequest:
    """One evaluation, before anything is started."""

    config: RunConfig
    """Read: evaluation, tasks.skill, seed, engine, rollout, sandbox, compile, judge (its protocol), store."""
    policy: PolicySource
    tasks: list[Task]
    out: Path
    tasks_source: str | None = None
    """What `tasks` were loaded from: reports show the code of the tasks from there."""
