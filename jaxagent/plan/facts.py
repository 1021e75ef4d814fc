"""What the compiler says of a plan's steps, as it crosses from the measuring process. Bytes are those of one device."""

from __future__ import annotations

import dataclasses
import json
import os
import subprocess
import sys
from dataclasses import dataclass
from typing import Any

from jaxagent.config.learner import LearnerConfig
from jaxagent.mesh.devices import num_devices
from jaxagent.models.config import DecoderConfig


class PlanError(RuntimeError):
    """The steps could not be compiled."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StepFacts:
    """One jitted step: XLA's memory analysis, and its traffic in one microbatch."""

    argument_bytes: int
    output_bytes: int
    aliased_bytes: int
    """Of the outputs, what takes the place of an argument."""
    temporary_bytes: int
    traffic: dict[str, dict[str, float]]
    compile_s: float

    @property
    def extra_bytes(self) -> int:
        """Beyond its arguments, while it runs."""
        return self.temporary_bytes + self.output_bytes - self.aliased_bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class StateBytes:
    """What is trained of a network."""

    parameters: int
    optimizer: int
    """Moments, and the float32 master copy where there is one."""
    gradients: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Facts:
    """Of all steps of an update."""

    steps: dict[str, StepFacts]
    actor: StateBytes
    critic: StateBytes
    frozen_bytes: int
    """The base under adapters, which both networks share."""
    batch_bytes: int
    peak_rss_gib: float
    """Of the measuring process."""


def measured(shape: DecoderConfig, config: LearnerConfig, *, num_microbatches: int) -> Facts:
    """Compiles in a process with as many virtual CPU devices as the mesh has. Raises PlanError."""
    request = {
        "shape": dataclasses.asdict(shape),
        "learner": config.model_dump(mode="json"),
        "num_microbatches": num_microbatches,
    }
    flags = f"--xla_force_host_platform_device_count={num_devices(config.mesh)}"
    done = subprocess.run(
        [sys.executable, "-m", "jaxagent.plan.measure"],
        input=json.dumps(request),
        stdout=subprocess.PIPE,
        text=True,
        env=os.environ | {"JAX_PLATFORMS": "cpu", "XLA_FLAGS": flags},
    )
    if done.returncode != 0:
        raise PlanError(
            f"the process that compiles the steps ended with code {done.returncode}; what it said stands above. "
            "A code of -9 means that this machine's memory did not suffice"
        )
    return read_facts(json.loads(done.stdout.splitlines()[-1]))


def read_facts(values: dict[str, Any]) -> Facts:
    made = {
        "steps": {name: StepFacts(**fields) for name, fields in values["steps"].items()},
        "actor": StateBytes(**values["actor"]),
        "critic": StateBytes(**values["critic"]),
    }
    return Facts(**values | made)
