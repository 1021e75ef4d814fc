"""`jaxagent plan`: what a config's updates cost on a mesh, before any of its devices is there."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from pathlib import Path

from jaxagent.config.load import load_config
from jaxagent.mesh.devices import check_mesh, num_devices
from jaxagent.plan.accelerators import ACCELERATORS
from jaxagent.plan.page import plan_text
from jaxagent.plan.plan import make_plan, plan_json


def plan_run(
    path: Path,
    *,
    devices: int | None,
    accelerator: str,
    memory_gib: float | None,
    efficiency: float,
    overrides: Sequence[str] = (),
    as_json: bool = False,
) -> str:
    """The plan as text, or as one JSON object. Raises ConfigError, PlanError."""
    config = load_config(path, overrides)
    check_mesh(config.learner.mesh, rows_per_microbatch=config.learner.rows_per_microbatch)
    print("compiling the steps; this takes minutes for a large model", file=sys.stderr, flush=True)
    plan = make_plan(
        config,
        devices=num_devices(config.learner.mesh) if devices is None else devices,
        accelerator=ACCELERATORS[accelerator],
        memory_gib=memory_gib,
        efficiency=efficiency,
    )
    if as_json:
        return json.dumps(plan_json(plan))
    return plan_text(plan, command=" ".join(["jaxagent plan", str(path), *overrides]))
