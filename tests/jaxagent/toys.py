"""A tiny learner, stages and trajectories that the learner's tests share."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx

from jaxagent.config.learner import LearnerConfig
from jaxagent.config.stages import OptimizerConfig, PPOStage
from jaxagent.learner.learner import Learner
from jaxagent.models.config import DecoderConfig
from jaxagent.models.decoder import new_decoder
from jaxagent.models.params import named_weights
from jaxagent.models.value import Critic
from rollout.config import DialogueConfig
from rollout.types import StopReason, Trajectory, Turn
from sandbox.types import Judgement, Outcome

VOCAB = 32
FAST = OptimizerConfig(learning_rate=1e-2)


TINY = DecoderConfig(
    family="llama",
    vocab_size=VOCAB,
    hidden_size=16,
    intermediate_size=32,
    num_layers=2,
    num_heads=2,
    num_kv_heads=1,
    head_dim=8,
    tie_embeddings=True,
)


@functools.cache
def _initial(seed, config):
    return nnx.split(new_decoder(config, seed=seed))


def tiny_actor(seed=0, config=TINY):
    graphdef, state = _initial(seed, config)
    return nnx.merge(graphdef, jax.tree.map(jnp.copy, state))


def make_learner(dump_dir, *, seed=0, config=TINY, actor=None, **settings):
    """A learner of a tiny decoder, or of `actor`; `settings` are LearnerConfig's."""
    settings = {"row_tokens": 64, "rows_per_microbatch": 2, "logits_chunk_tokens": 64} | settings
    learner = LearnerConfig(**settings)
    graphdef, params = nnx.split(actor or tiny_actor(config=config))
    actor = nnx.merge(graphdef, jax.tree.map(lambda param: param.astype(learner.param_dtype), params))
    return Learner(
        actor,
        make_critic=Critic.from_decoder,
        export=named_weights,
        config=learner,
        seed=seed,
        dump_dir=dump_dir,
        vocab_size=VOCAB,
    )


def ppo_stage(temperature=1.0, rate=1e-2, **fields):
    adam = OptimizerConfig(learning_rate=rate)
    return PPOStage(
        name="ppo",
        updates=9,
        trajectories_per_update=8,
        dialogue=DialogueConfig(temperature=temperature),
        actor_optimizer=adam,
        critic_optimizer=adam,
        **fields,
    )


def log_stage(kind, epochs=2, size=3):
    return kind(name="log", data=[], epochs=epochs, trajectories_per_update=size, optimizer=FAST)


def weights_of(learner):
    return {name: np.array(value) for name, value in learner.weights()}


def make_turn(prompt, output, version=0, logprobs=None, **fields):
    logprobs = -np.ones(len(output)) if logprobs is None else logprobs
    return Turn(
        prompt_token_ids=np.array(prompt, np.int32),
        token_ids=np.array(output, np.int32),
        logprobs=np.asarray(logprobs, np.float32),
        policy_versions=np.full(len(output), version, np.int32),
        text="",
        **fields,
    )


def make_trajectory(turns, name="t", reward=1.0, stop_reason=StopReason.FINISHED, **fields):
    outcome = Outcome.CORRECT if reward > 0 else Outcome.WRONG
    return Trajectory(
        trajectory_id=name,
        task_id="task",
        sample_index=0,
        stage="s",
        seed=0,
        turns=turns,
        judgement=Judgement(outcome=outcome, reward=reward, message=""),
        stop_reason=stop_reason,
        **fields,
    )


def random_trajectories(count, *, seed=0, version=0, longest=40, rewards=(-1.0, 1.0, 2.0, 3.0)):
    """Two-turn trajectories with a tool result in between."""
    rng = np.random.default_rng(seed)
    made = []
    for index in range(count):
        prompt = rng.integers(0, VOCAB, 3).tolist()
        first = rng.integers(0, VOCAB, rng.integers(2, longest // 3)).tolist()
        tool = rng.integers(0, VOCAB, 4).tolist()
        second = rng.integers(0, VOCAB, rng.integers(2, longest // 3)).tolist()
        turns = [
            make_turn(prompt, first, version, rng.normal(-3.4, 0.2, len(first))),
            make_turn(prompt + first + tool, second, version, rng.normal(-3.4, 0.2, len(second))),
        ]
        made.append(make_trajectory(turns, f"t{seed}-{index}", float(rng.choice(rewards))))
    return made
