"""jaxagent's side of the GPU part: the actor's and the critic's optimizer step, all parameters trained.

The learner's own (`Steps.ppo`, `Steps.value`), with both networks and their optimizers in memory as in training.
"""

from __future__ import annotations

import json
import sys
import tempfile
from pathlib import Path
from typing import Any

import jax
import numpy as np
from gpu_case import B1, B2, HEAD_DIM, LEARNING_RATE, MAX_GRAD_NORM, NUMBERS, ROPE_THETA, Case, draw
from worker import Update, serve

from jaxagent.batches.minibatch import Minibatch
from jaxagent.batches.sequences import TokenSequence
from jaxagent.config.learner import LearnerConfig, PPOConfig
from jaxagent.config.stages import OptimizerConfig
from jaxagent.learner.steps import Steps
from jaxagent.learner.types import StepOutput, Targets
from jaxagent.models.config import ComputeConfig, DecoderConfig, RopeConfig
from jaxagent.models.decoder import new_decoder
from jaxagent.models.value import Critic

SHAPE = DecoderConfig(
    family="qwen2",
    head_dim=HEAD_DIM,
    rope=RopeConfig(theta=ROPE_THETA),
    tie_embeddings=True,
    qkv_bias=True,
    **NUMBERS,
)
ADAM = OptimizerConfig(learning_rate=LEARNING_RATE, b1=B1, b2=B2, max_grad_norm=MAX_GRAD_NORM)


def main(options: dict[str, Any]) -> None:
    """Each number of rows_at_a_time is a batch of its own: the same rows in other microbatches."""
    case = draw(options["rows"], options["row_tokens"], least=options["least"], greatest=options["greatest"])
    configs = [learner_config(options["learner"], rows) for rows in options["rows_at_a_time"]]
    actor = new_decoder(SHAPE, ComputeConfig.of(configs[0]), seed=0)
    steps = Steps(actor, Critic.from_decoder(actor), config=configs[0], dump_dir=Path(tempfile.gettempdir()))
    del actor
    last: dict[str, float] = {}
    updates = {}
    for config in configs:
        actor_step, critic_step = both_steps(steps, minibatch_of(case, config, steps), case, last)
        batch = str(config.rows_per_microbatch)
        updates[batch, "actor"] = actor_step, sum(case.lengths)
        updates[batch, "critic"] = critic_step, sum(case.lengths)
    device = jax.devices()[0]
    serve(
        updates,
        lambda: last | {"peak_bytes": device.memory_stats()["peak_bytes_in_use"]},
        side="jaxagent",
        jax=jax.__version__,
        device=device.device_kind,
        parameters=sum(leaf.size for leaf in jax.tree.leaves(steps.actor.params)),
    )


def learner_config(settings: dict[str, Any], rows_at_a_time: int) -> LearnerConfig:
    ppo = PPOConfig(aggregation="token_mean", importance_cap=None)
    return LearnerConfig(compute_dtype="bfloat16", ppo=ppo, rows_per_microbatch=rows_at_a_time, **settings)


def both_steps(steps: Steps, minibatch: Minibatch, case: Case, last: dict[str, float]) -> tuple[Update, Update]:
    """(actor's, critic's); what a step says goes into `last`."""
    signal = minibatch.put(minibatch.packed.scatter(case.advantages))

    def actor_step() -> None:
        finish(steps.ppo(minibatch, Targets(advantages=signal), ADAM, temperature=1.0), last)

    def critic_step() -> None:
        finish(steps.value(minibatch, signal, ADAM), last)

    return actor_step, critic_step


def minibatch_of(case: Case, config: LearnerConfig, steps: Steps) -> Minibatch:
    sequences = [
        TokenSequence(
            trajectory_id=str(index),
            token_ids=of_one,
            loss_mask=mask,
            rollout_logprobs=np.where(mask, -np.log(SHAPE.vocab_size), 0).astype(np.float32),
            policy_versions=np.where(mask, 0, -1).astype(np.int32),
            truncated=False,
        )
        for index, (of_one, mask) in enumerate(zip(case.token_ids, case.masks, strict=True))
    ]
    rewards = [1.0] * len(sequences)
    return Minibatch.of(sequences, rewards, config=config, row_tokens=config.row_tokens, mesh=steps.mesh)


def finish(output: StepOutput, last: dict[str, float]) -> None:
    """Waits for a step, and notes what it said."""
    if not bool(jax.block_until_ready(output).finite):
        raise SystemExit("the update was skipped: its loss or gradient isn't finite")
    last |= {"loss": float(output.loss), "grad_norm": float(output.grad_norm)}


if __name__ == "__main__":
    main(json.loads(sys.argv[1]))
