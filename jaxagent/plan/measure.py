"""The process of a plan that has virtual devices: lowers and compiles each step, and says what XLA says of it.

    python -m jaxagent.plan.measure < request.json > facts.json

It is a process of its own because JAX fixes the number of devices when it starts, and so that what compilation takes
goes back to the system.
"""

from __future__ import annotations

import dataclasses
import json
import resource
import sys
import time
from typing import Any

import jax

from jaxagent.config.learner import LearnerConfig
from jaxagent.mesh.sharding import make_mesh
from jaxagent.models.config import DecoderConfig, RopeConfig
from jaxagent.plan.collectives import traffic_of
from jaxagent.plan.facts import Facts, StateBytes, StepFacts
from jaxagent.plan.lowering import AbstractLearner, AbstractNetwork, device_bytes

COMPILER_OPTIONS = {"xla_backend_optimization_level": 0, "xla_llvm_disable_expensive_passes": True}
"""Buffers are laid out before machine code is made, which nobody will run."""


def main() -> None:
    request = json.load(sys.stdin)
    shape, config = read_shape(request["shape"]), LearnerConfig.model_validate(request["learner"])
    print(json.dumps(dataclasses.asdict(measure(shape, config, num_microbatches=request["num_microbatches"]))))


def measure(shape: DecoderConfig, config: LearnerConfig, *, num_microbatches: int) -> Facts:
    """Compiles for the mesh of `config`, whose devices have to be there, real or virtual."""
    mesh = make_mesh(config.mesh, rows_per_microbatch=config.rows_per_microbatch)
    learner = AbstractLearner(shape, config, mesh, num_microbatches=num_microbatches)
    steps = {}
    for name, lowered in learner.lowered():
        started = time.perf_counter()
        compiled = lowered.compile(compiler_options=COMPILER_OPTIONS)
        memory: Any = compiled.memory_analysis()
        steps[name] = StepFacts(
            argument_bytes=memory.argument_size_in_bytes,
            output_bytes=memory.output_size_in_bytes,
            aliased_bytes=memory.alias_size_in_bytes,
            temporary_bytes=memory.temp_size_in_bytes,
            traffic=traffic_of(compiled.as_text() or "", mesh.shape),
            compile_s=round(time.perf_counter() - started, 1),
        )
        print(f"compiled the {name} step in {steps[name].compile_s} s", file=sys.stderr, flush=True)
    return Facts(
        steps=steps,
        actor=state_bytes(learner.actor),
        critic=state_bytes(learner.critic),
        frozen_bytes=device_bytes(learner.actor.frozen),
        batch_bytes=device_bytes(learner.batch),
        peak_rss_gib=resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20,
    )


def state_bytes(network: AbstractNetwork) -> StateBytes:
    state = network.state
    return StateBytes(
        parameters=device_bytes(state.params),
        optimizer=device_bytes((state.opt_state, state.master)),
        gradients=sum(4 * device_bytes(leaf) // leaf.dtype.itemsize for leaf in jax.tree.leaves(state.params)),
    )


def read_shape(fields: dict[str, Any]) -> DecoderConfig:
    """The way back from dataclasses.asdict through JSON."""
    ropes = {name: fields[name] and RopeConfig(**fields[name]) for name in ("rope", "sliding_rope")}
    tuples = {name: tuple(fields[name]) for name in ("sliding_layers", "eos_token_ids")}
    typed: dict[str, Any] = fields | ropes | tuples
    return DecoderConfig(**typed)


if __name__ == "__main__":
    main()
