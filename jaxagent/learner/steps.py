"""The two networks of a learner and everything that is computed with them, a minibatch at a time."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, Literal

import jax
import numpy as np
from flax import nnx

from jaxagent.batches.minibatch import Minibatch
from jaxagent.config.learner import LearnerConfig
from jaxagent.config.stages import OptimizerConfig
from jaxagent.learner.checkpoint import CheckpointError
from jaxagent.learner.losses import (
    Loss,
    Score,
    make_actor_score,
    make_critic_loss,
    make_finetune_loss,
    make_ppo_loss,
    make_value_target_score,
)
from jaxagent.learner.metrics import Metrics
from jaxagent.learner.network import Network, copy_params
from jaxagent.learner.types import StepOutput, Targets
from jaxagent.mesh.host import to_host
from jaxagent.mesh.sharding import make_mesh


class NonFiniteError(RuntimeError):
    """Losses or gradients weren't finite several steps in a row; the last batch lies in a file."""


def actor_functions(config: LearnerConfig) -> tuple[dict[str, Loss], dict[str, Score]]:
    """What is computed with an actor, by name: losses it is trained by, and scores of its tokens."""
    chunk_tokens = config.logits_chunk_tokens
    losses = {
        "ppo": make_ppo_loss(config.ppo, chunk_tokens=chunk_tokens, router_aux_coef=config.router_aux_coef),
        "finetune": make_finetune_loss(chunk_tokens=chunk_tokens, router_aux_coef=config.router_aux_coef),
    }
    return losses, {"logprobs": make_actor_score(chunk_tokens=chunk_tokens)}


def critic_functions(config: LearnerConfig) -> tuple[dict[str, Loss], dict[str, Score]]:
    """The same of a critic."""
    return {"value": make_critic_loss(config.ppo)}, {"targets": make_value_target_score(config.ppo)}


class Steps:
    """Actor, critic and, where the loss has a KL term, the actor as it was when the stage began."""

    def __init__(self, actor: nnx.Module, critic: nnx.Module, *, config: LearnerConfig, dump_dir: Path) -> None:
        self.config, self._dump_dir = config, dump_dir
        self.mesh = make_mesh(config.mesh, rows_per_microbatch=config.rows_per_microbatch)
        actor_losses, actor_scores = actor_functions(config)
        critic_losses, critic_scores = critic_functions(config)
        self.actor = Network(actor, self.mesh, losses=actor_losses, scores=actor_scores)
        self.critic = Network(critic, self.mesh, losses=critic_losses, scores=critic_scores)
        self._reference: Any = None
        self._skipped_in_a_row = 0

    def keep_reference(self) -> None:
        """Only where the loss reads it: it costs another copy of the actor."""
        self._reference = copy_params(self.actor.params) if self.config.ppo.kl_coef > 0 else None

    def value_targets(self, minibatch: Minibatch) -> dict[str, np.ndarray]:
        """values, advantages, returns [M, B, T] of the critic as it is."""
        return to_host(self.critic.score("targets", minibatch))

    def logprobs(self, minibatch: Minibatch, *, temperature: float, reference: bool = False) -> jax.Array:
        params = self._reference if reference else None
        return self.actor.score("logprobs", minibatch, temperature=temperature, params=params)["logprobs"]

    def finetune(self, minibatch: Minibatch, cfg: OptimizerConfig) -> StepOutput:
        return self._checked("actor", minibatch, self.actor.step("finetune", minibatch, Targets(), cfg))

    def ppo(self, minibatch: Minibatch, targets: Targets, cfg: OptimizerConfig, *, temperature: float) -> StepOutput:
        output = self.actor.step("ppo", minibatch, targets, cfg, temperature=temperature)
        return self._checked("actor", minibatch, output)

    def value(self, minibatch: Minibatch, returns: Any, cfg: OptimizerConfig, *, old_values: Any = None) -> StepOutput:
        if self.config.ppo.value_clip is None:
            old_values = None
        elif old_values is None:
            old_values = self.critic.score("targets", minibatch)["values"]
        targets = Targets(returns=_on_mesh(minibatch, returns), old_values=_on_mesh(minibatch, old_values))
        return self._checked("critic", minibatch, self.critic.step("value", minibatch, targets, cfg))

    def report(self, network: Literal["actor", "critic"], output: StepOutput) -> Metrics:
        """Loss, gradient norm before the clip, learning rate, and steps skipped since the stage began."""
        skipped = getattr(self, network).state.num_skipped
        loss, grad_norm, rate, skipped = to_host((output.loss, output.grad_norm, output.learning_rate, skipped))
        return {
            f"{network}_loss": float(loss),
            f"{network}_grad_norm": float(grad_norm),
            f"{network}_learning_rate": float(rate),
            f"{network}_skipped_steps": float(skipped),
        }

    def arrays(self, *, with_reference: bool | None = None) -> dict[str, Any]:
        """What a checkpoint holds. `with_reference` shapes the tree for reading one."""
        arrays: dict[str, Any] = {"actor": self.actor.state, "critic": self.critic.state}
        if with_reference or (with_reference is None and self.has_reference):
            arrays["reference"] = self.actor.params if self._reference is None else self._reference
        return arrays

    def record(self) -> dict[str, Any]:
        """What a checkpoint's record says of the arrays, and of the frozen ones that it doesn't hold."""
        return {"has_reference": self.has_reference, "frozen_checksum": self.actor.frozen_checksum}

    def check_base(self, record: dict[str, Any]) -> None:
        """Raises CheckpointError where a checkpoint's adapters belong to another base."""
        saved, here = record.get("frozen_checksum"), self.actor.frozen_checksum
        if saved != here:
            raise CheckpointError(
                f"the checkpoint's adapters belong to a base with checksum {saved} and this one has {here}; set "
                "model.path, learner.param_dtype and learner.lora as in the run that wrote it"
            )

    def load_arrays(self, arrays: dict[str, Any]) -> None:
        self.actor.state, self.critic.state = arrays["actor"], arrays["critic"]
        self._reference = arrays.get("reference")
        self._skipped_in_a_row = 0

    @property
    def has_reference(self) -> bool:
        return self._reference is not None

    def _checked(self, network: str, minibatch: Minibatch, output: StepOutput) -> StepOutput:
        """Counts steps that were skipped; raises NonFiniteError after max_nonfinite_steps in a row."""
        if bool(to_host(output.finite)):
            self._skipped_in_a_row = 0
            return output
        self._skipped_in_a_row += 1
        if self._skipped_in_a_row < self.config.max_nonfinite_steps:
            return output
        path = self._dump(network, minibatch, output)
        raise NonFiniteError(
            f"{self._skipped_in_a_row} steps in a row had a loss or gradient that isn't finite (the last: {network}, "
            f"learner.max_nonfinite_steps={self.config.max_nonfinite_steps}). The parameters are those before these "
            f"steps; the last batch is in {path}. Look there for extreme rollout_logprobs or rewards, lower the "
            "stage's learning rate, or resume from the last checkpoint"
        )

    def _dump(self, network: str, minibatch: Minibatch, output: StepOutput) -> Path:
        self._dump_dir.mkdir(parents=True, exist_ok=True)
        path = self._dump_dir / f"nonfinite_{network}.npz"
        arrays = minibatch.packed.batch._asdict() | to_host(output.per_token)
        ids = [sequence.trajectory_id for sequence in minibatch.sequences]
        about = {
            "loss": str(to_host(output.loss)),
            "grad_norm": str(to_host(output.grad_norm)),
            "trajectory_ids": ids,
            "places": minibatch.packed.places,
        }
        np.savez(path, about=np.array(json.dumps(about)), **arrays)
        return path


def _on_mesh(minibatch: Minibatch, array: Any) -> Any:
    return minibatch.put(array) if isinstance(array, np.ndarray) else array
