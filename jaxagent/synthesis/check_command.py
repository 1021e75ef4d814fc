"""`jaxagent tasks check`: every filter over a folder or a parquet."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any, Literal

from pydantic import ValidationError
from rich.console import Console

from jaxagent.synthesis.candidates import read_candidates
from jaxagent.synthesis.checker import CheckedTask, TaskChecker
from jaxagent.synthesis.progress import phase_bars
from jaxagent.synthesis.reasons import FilterConfig
from sandbox.taskcheck.config import ProbeConfig
from sandbox.tasks import TaskError


def check_path(
    path: Path, *, filters: dict[str, Any], device: Literal["cpu", "cuda"], console: Console
) -> list[CheckedTask]:
    """Checks what lies at `path`, in its order, on one device of this machine; `filters` are keys of FilterConfig.

    Raises TaskError where there is nothing to check, or a filter's setting is not allowed.
    """
    candidates = read_candidates(path)
    try:
        config = FilterConfig.model_validate(filters)
    except ValidationError as error:
        raise TaskError("tasks check: " + "; ".join(entry["msg"] for entry in error.errors())) from None
    there = len(os.sched_getaffinity(0))
    cores = min(there, 2)
    probe = ProbeConfig(device=device, cores_per_device=cores, num_compilers=max(there - cores, cores))
    with phase_bars(console) as report, TaskChecker(config, probe, report=report) as checker:
        return checker.check(candidates)
