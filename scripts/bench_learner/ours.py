"""jaxagent's side: `update` is Learner.ppo_update, `steps` the critic's and the actor's optimizer step alone."""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path
from typing import Any

import jax
import numpy as np
from batches import (
    B1,
    B2,
    CLIP_HIGH,
    CLIP_LOW,
    GAE_LAMBDA,
    GAMMA,
    LEARNING_RATE,
    MAX_GRAD_NORM,
    ROW_TOKENS,
    SIZES,
    VALUE_CLIP,
    Sequences,
    draw,
)
from worker import serve

from jaxagent.batches.minibatch import Minibatch
from jaxagent.batches.sequences import to_sequence
from jaxagent.config.learner import LearnerConfig, PPOConfig
from jaxagent.config.stages import OptimizerConfig, PPOStage
from jaxagent.learner.learner import Learner
from jaxagent.learner.types import Targets
from jaxagent.models.config import DecoderConfig
from jaxagent.models.decoder import new_decoder
from jaxagent.models.params import named_weights
from jaxagent.models.value import Critic
from rollout.config import DialogueConfig
from rollout.types import StopReason, Trajectory, Turn
from sandbox.types import Judgement, Outcome


def main(size: str) -> None:
    numbers = SIZES[size]
    learner, stage = make_learner(numbers), make_stage()
    learner.start_stage(stage)
    updates: dict[tuple[str, str], Any] = {}
    for kind in ("dense", "ragged"):
        sequences = draw(kind, vocab=numbers["vocab"])
        trajectories = as_trajectories(sequences)
        updates[kind, "update"] = (lambda t=trajectories: learner.ppo_update(t, stage)), sequences.num_tokens
        updates[kind, "steps"] = steps_alone(learner, trajectories, stage), sequences.num_tokens
    parameters = sum(leaf.size for leaf in jax.tree.leaves(learner._steps.actor.params))
    serve(updates, side="jaxagent", jax=jax.__version__, device=jax.devices()[0].device_kind, parameters=parameters)


def make_learner(numbers: dict[str, int]) -> Learner:
    shape = DecoderConfig(
        family="qwen2",
        vocab_size=numbers["vocab"],
        hidden_size=numbers["hidden"],
        intermediate_size=numbers["width"],
        num_layers=numbers["num_layers"],
        num_heads=numbers["heads"],
        num_kv_heads=numbers["kv_heads"],
        head_dim=numbers["hidden"] // numbers["heads"],
        qkv_bias=True,
    )
    ppo = PPOConfig(
        clip_low=CLIP_LOW,
        clip_high=CLIP_HIGH,
        gamma=GAMMA,
        gae_lambda=GAE_LAMBDA,
        value_clip=VALUE_CLIP,
        importance_cap=None,
        aggregation="token_mean",
    )
    config = LearnerConfig(ppo=ppo, row_tokens=ROW_TOKENS, rows_per_microbatch=4, remat=False)
    return Learner(
        new_decoder(shape, seed=0),
        make_critic=Critic.from_decoder,
        export=named_weights,
        config=config,
        seed=0,
        dump_dir=Path(tempfile.gettempdir()),
    )


def make_stage() -> PPOStage:
    adam = OptimizerConfig(learning_rate=LEARNING_RATE, b1=B1, b2=B2, max_grad_norm=MAX_GRAD_NORM)
    return PPOStage(
        name="ppo",
        updates=1,
        trajectories_per_update=8,
        dialogue=DialogueConfig(),
        actor_optimizer=adam,
        critic_optimizer=adam,
    )


def as_trajectories(sequences: Sequences) -> list[Trajectory]:
    made = []
    for index, (prompt, completion, reward) in enumerate(zip(*sequences, strict=True)):
        turn = Turn(
            prompt_token_ids=prompt,
            token_ids=completion,
            logprobs=np.full(len(completion), -8, np.float32),
            policy_versions=np.zeros(len(completion), np.int32),
            text="",
        )
        outcome = Outcome.CORRECT if reward > 0 else Outcome.WRONG
        made.append(
            Trajectory(
                trajectory_id=str(index),
                task_id="task",
                sample_index=0,
                stage="ppo",
                seed=0,
                turns=[turn],
                judgement=Judgement(outcome=outcome, reward=float(reward), message=""),
                stop_reason=StopReason.FINISHED,
            )
        )
    return made


def steps_alone(learner: Learner, trajectories: list[Trajectory], stage: PPOStage) -> Any:
    steps, config = learner._steps, learner._config
    sequences = [to_sequence(trajectory, row_tokens=ROW_TOKENS) for trajectory in trajectories]
    rewards = [trajectory.judgement.reward for trajectory in trajectories]
    minibatch = Minibatch.of(sequences, rewards, config=config, row_tokens=ROW_TOKENS, mesh=steps.mesh)
    signal = minibatch.put(minibatch.packed.batch.loss_mask.astype(np.float32))

    def run() -> None:
        steps.value(minibatch, signal, stage.critic_optimizer, old_values=signal)
        steps.ppo(minibatch, Targets(advantages=signal), stage.actor_optimizer, temperature=1.0)
        jax.block_until_ready((steps.actor.state, steps.critic.state))

    return run


if __name__ == "__main__":
    main(sys.argv[1])
