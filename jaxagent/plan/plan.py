"""A plan: what one PPO update of a config costs on its mesh, per device, and what to change where it does not fit."""

from __future__ import annotations

import json
import math
from dataclasses import asdict, dataclass
from typing import Any

from jaxagent.config.learner import LearnerConfig
from jaxagent.config.load import ConfigError
from jaxagent.config.model import ModelConfig, ScratchModelConfig
from jaxagent.config.run import RunConfig
from jaxagent.config.stages import PPOStage
from jaxagent.mesh.devices import AXES, num_devices, shown
from jaxagent.models.config import DecoderConfig
from jaxagent.models.families import from_hf, from_scratch
from jaxagent.plan.accelerators import Accelerator
from jaxagent.plan.advice import Advice, advise
from jaxagent.plan.facts import Facts, measured
from jaxagent.plan.flops import step_flops
from jaxagent.plan.memory import Memory, memory_of
from jaxagent.plan.timing import StepTime, step_time


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """One update of the largest PPO stage, all rows full."""

    stage: str
    num_rows: int
    num_microbatches: int
    facts: Facts
    memory: dict[str, Memory]
    """Of a device while each step runs."""
    times: dict[str, StepTime]
    """Of each step over the whole update; of the critic step, its repetitions together."""
    mfu: float
    """The update's model FLOPs over what the devices could do in its time."""
    accelerator: Accelerator
    capacity_bytes: int
    advice: list[Advice]
    """Empty where it fits."""

    @property
    def peak(self) -> Memory:
        return max(self.memory.values(), key=lambda memory: memory.total)

    @property
    def fits(self) -> bool:
        return self.peak.total <= self.capacity_bytes

    @property
    def seconds(self) -> float:
        return sum(time.seconds for time in self.times.values())


def make_plan(
    config: RunConfig, *, devices: int, accelerator: Accelerator, memory_gib: float | None, efficiency: float
) -> Plan:
    """Compiles the steps (minutes for a large model) and adds up. `memory_gib` replaces the accelerator's own.

    Raises ConfigError where the mesh does not have `devices` devices or no stage is PPO, PlanError where the compiler's
    process fails.
    """
    learner, shape = config.learner, model_shape(config.model)
    _check_devices(learner, devices)
    stage, num_rows = _largest_update(config)
    rows_a_step = -(-num_rows // learner.ppo.minibatches)
    num_microbatches = -(-rows_a_step // learner.rows_per_microbatch)
    facts = measured(shape, learner, num_microbatches=num_microbatches)
    memory = {name: memory_of(name, facts, shape, learner) for name in facts.steps}
    repeats = {"targets": 1, "critic": learner.ppo.critic_updates, "actor": 1}
    mesh_shape = {axis: getattr(learner.mesh, axis) for axis in AXES}
    times = {
        name: step_time(
            step_flops(name, shape, learner, rows=num_rows * repeats[name]),
            step.traffic,
            num_microbatches=num_microbatches * learner.ppo.minibatches * repeats[name],
            mesh_shape=mesh_shape,
            accelerator=accelerator,
            dtype=learner.compute_dtype,
            efficiency=efficiency,
        )
        for name, step in facts.steps.items()
    }
    capacity = int((accelerator.memory_gib if memory_gib is None else memory_gib) * 2**30)
    peak = max(memory.values(), key=lambda part: part.total)
    peak_flops = devices * accelerator.bf16_tflops * 1e12 * sum(time.seconds for time in times.values())
    return Plan(
        stage=stage,
        num_rows=num_rows,
        num_microbatches=num_microbatches,
        facts=facts,
        memory=memory,
        times=times,
        mfu=sum(time.flops.model for time in times.values()) / peak_flops,
        accelerator=accelerator,
        capacity_bytes=capacity,
        advice=advise(peak, learner) if peak.total > capacity else [],
    )


def model_shape(model: ModelConfig) -> DecoderConfig:
    """The architecture that a config names. Raises ConfigError where its folder has no config.json."""
    if isinstance(model, ScratchModelConfig):
        return from_scratch(model)
    path = model.path.expanduser() / "config.json"
    if not path.is_file():
        raise ConfigError(f"model.path={model.path}: no config.json is there; a plan needs nothing else of the folder")
    return from_hf(json.loads(path.read_text()))


def plan_json(plan: Plan) -> dict[str, Any]:
    """Everything of a plan in plain types."""
    return asdict(plan) | {
        "fits": plan.fits,
        "peak_bytes": plan.peak.total,
        "seconds": plan.seconds,
        "advice": [asdict(advice) | {"overrides": advice.overrides} for advice in plan.advice],
    }


def _check_devices(learner: LearnerConfig, devices: int) -> None:
    found = num_devices(learner.mesh)
    if found == devices:
        return
    others = found // learner.mesh.fsdp
    hint = "lower an axis"
    if devices % others == 0:
        fsdp = devices // others
        rows = learner.mesh.data * fsdp * learner.mesh.expert
        rows *= math.ceil(learner.rows_per_microbatch / rows)
        hint = f"for example --learner.mesh.fsdp={fsdp} --learner.rows_per_microbatch={rows}"
    raise ConfigError(
        f"--devices {devices}: learner.mesh ({shown(learner.mesh)}) has {found}; change the mesh so that its axes "
        f"multiply to {devices}: {hint}"
    )


def _largest_update(config: RunConfig) -> tuple[str, int]:
    """The PPO stage with the most tokens an update, and the rows of one, each trajectory as long as it may get."""

    def tokens(stage: PPOStage) -> int:
        return stage.trajectories_per_update * stage.dialogue.max_context_tokens

    stages = [stage for stage in config.stages if isinstance(stage, PPOStage)]
    if not stages:
        kinds = ", ".join(sorted({stage.kind for stage in config.stages}))
        raise ConfigError(f"stages: a plan is made for a PPO stage, and this config has {kinds} alone; add one")
    largest = max(stages, key=tokens)
    a_row = max(1, config.learner.row_tokens // largest.dialogue.max_context_tokens)
    return largest.name, -(-largest.trajectories_per_update // a_row)
