"""google-tunix's side, in an environment of its own: `update` is what its PPO learner does once the rollouts are there
(old log-probs, values, advantages, a step of actor and critic), `steps` the two train steps alone. Metrics are left out
of it."""

from __future__ import annotations

import sys
from importlib.metadata import version
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
from batches import (
    B1,
    B2,
    CLIP_HIGH,
    CLIP_LOW,
    END,
    GAE_LAMBDA,
    GAMMA,
    LEARNING_RATE,
    MAX_GRAD_NORM,
    PAD,
    PROMPT_TOKENS,
    ROW_TOKENS,
    SIZES,
    VALUE_CLIP,
    Sequences,
    draw,
)
from flax import nnx
from tunix.models.qwen2.model import ModelConfig, Qwen2
from tunix.rl import algo_core, common
from tunix.rl.ppo.ppo_learner import PPOConfig, TrainExample
from tunix.rl.trainer import Trainer
from tunix.rl.utils import create_critic_model
from tunix.sft.peft_trainer import TrainingConfig
from worker import serve

CONFIG = PPOConfig(
    gamma=GAMMA, gae_lambda=GAE_LAMBDA, beta=0.0, epsilon_low=CLIP_LOW, epsilon_high=CLIP_HIGH,
    clip_range_value=VALUE_CLIP,
)  # fmt: skip
TOKENS = {"pad_id": PAD, "eos_id": END}


def main(size: str) -> None:
    numbers = SIZES[size]
    actor = make_actor(numbers)
    critic = create_critic_model(actor)
    actor_trainer = make_trainer(
        actor, algo_core.ppo_policy_loss_fn, lambda x: {"train_example": x, "algo_config": CONFIG, **TOKENS}
    )
    critic_trainer = make_trainer(
        critic, algo_core.ppo_value_loss_fn, lambda x: {"train_example": x, "clip_range_value": VALUE_CLIP, **TOKENS}
    )
    updates: dict[tuple[str, str], Any] = {}
    for kind in ("dense", "ragged"):
        sequences = draw(kind, vocab=numbers["vocab"])
        arrays = padded(sequences)

        def update(arrays: Any = arrays) -> None:
            train(actor_trainer, critic_trainer, example_of(actor, critic, *arrays))

        ready = example_of(actor, critic, *arrays)
        updates[kind, "update"] = update, sequences.num_tokens
        updates[kind, "steps"] = (lambda e=ready: train(actor_trainer, critic_trainer, e)), sequences.num_tokens
    parameters = sum(leaf.size for leaf in jax.tree.leaves(nnx.state(actor, nnx.Param)))
    about = {"jax": jax.__version__, "device": jax.devices()[0].device_kind, "parameters": int(parameters)}
    serve(updates, side=f"google-tunix {version('google-tunix')}", **about)


def make_actor(numbers: dict[str, int]) -> Qwen2:
    config = ModelConfig(
        num_layers=numbers["num_layers"],
        vocab_size=numbers["vocab"],
        embed_dim=numbers["hidden"],
        hidden_dim=numbers["width"],
        num_heads=numbers["heads"],
        head_dim=numbers["hidden"] // numbers["heads"],
        num_kv_heads=numbers["kv_heads"],
        rope_theta=10_000,
        norm_eps=1e-6,
        use_tied_embedding=False,
    )
    return Qwen2(config, rngs=nnx.Rngs(0))


def make_trainer(model: nnx.Module, loss: Any, inputs: Any) -> Any:
    """Its jitted train step, with the model graph cached, which its own learner leaves out and which only helps it."""
    adam = optax.chain(
        optax.clip_by_global_norm(MAX_GRAD_NORM), optax.adamw(LEARNING_RATE, b1=B1, b2=B2, weight_decay=0)
    )
    trainer = Trainer(model, adam, TrainingConfig(eval_every_n_steps=10**9), lambda: {})
    trainer.with_loss_fn(loss, has_aux=True).with_gen_model_input_fn(inputs)
    return trainer.jit_train_and_eval_step(cache_nnx_graph=True)[0]


def padded(sequences: Sequences) -> tuple[jax.Array, jax.Array, jax.Array]:
    """(prompts padded on the left, completions padded on the right, rewards): one row a sequence."""
    prompts = np.full((len(sequences.prompts), PROMPT_TOKENS), PAD, np.int32)
    completions = np.full((len(sequences.prompts), ROW_TOKENS - PROMPT_TOKENS), PAD, np.int32)
    for row, (prompt, completion) in enumerate(zip(sequences.prompts, sequences.completions, strict=True)):
        prompts[row, PROMPT_TOKENS - len(prompt) :] = prompt
        completions[row, : len(completion)] = completion
    return jnp.asarray(prompts), jnp.asarray(completions), jnp.asarray(sequences.rewards)


def example_of(actor: Any, critic: Any, prompts: jax.Array, completions: jax.Array, rewards: jax.Array) -> TrainExample:
    """As PPOLearner._generate_and_compute_advantage, from the generated tokens on."""
    mask = completions != PAD
    old_logprobs = common.compute_per_token_logps(*nnx.split(actor), prompts, completions, **TOKENS)
    num = completions.shape[1]
    values = common.compute_score(critic, prompts, completions, **TOKENS)[:, -num - 1 : -1] * mask
    last = jnp.max(common.build_positions_from_mask(mask), axis=-1)
    per_token = jnp.zeros(completions.shape, jnp.float32).at[jnp.arange(len(rewards)), last].add(rewards)
    advantages, returns = algo_core.compute_gae_advantages(
        rewards=per_token, values=values, completion_mask=mask, gamma=GAMMA, gae_lambda=GAE_LAMBDA
    )
    return TrainExample(
        prompt_ids=prompts,
        prompt_mask=(prompts != PAD).astype(jnp.int32),
        completion_ids=completions,
        completion_mask=mask,
        ref_per_token_logps=None,
        advantages=advantages,
        returns=returns,
        old_per_token_logps=old_logprobs,
        old_values=values,
    )


def train(actor_step: Any, critic_step: Any, example: TrainExample) -> None:
    jax.block_until_ready((actor_step(example), critic_step(example)))


if __name__ == "__main__":
    main(sys.argv[1])
