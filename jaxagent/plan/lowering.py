"""The learner's own jitted steps, lowered on shapes: nothing of the model is ever in memory."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from jax.sharding import Mesh, NamedSharding

from jaxagent.batches.batch import Batch
from jaxagent.batches.packing import num_slots
from jaxagent.config.learner import LearnerConfig
from jaxagent.learner.network import IDLE_OPTIMIZER, state_shardings, step_scalars
from jaxagent.learner.steps import actor_functions, critic_functions
from jaxagent.learner.types import Targets, TrainState
from jaxagent.learner.update import init_train_state, make_score, make_train_step
from jaxagent.mesh.sharding import batch_sharding, param_shardings
from jaxagent.models.config import ComputeConfig, DecoderConfig
from jaxagent.models.decoder import abstract_decoder
from jaxagent.models.lora import add_adapters, trainable
from jaxagent.models.value import Critic


@dataclass(frozen=True, slots=True)
class AbstractNetwork:
    """An actor or critic of shapes with their places on a mesh."""

    graphdef: Any
    state: TrainState
    shardings: TrainState
    frozen: Any

    @classmethod
    def of(cls, module: nnx.Module, mesh: Mesh) -> AbstractNetwork:
        graphdef, params, frozen = nnx.split(module, trainable, nnx.Param)
        state = jax.eval_shape(lambda params: init_train_state(params, IDLE_OPTIMIZER), params)
        shardings = state_shardings(state, param_shardings(params, mesh), mesh)
        return cls(graphdef, _placed(state, shardings), shardings, _placed(frozen, param_shardings(frozen, mesh)))


class AbstractLearner:
    """Actor, critic and one minibatch, on a mesh whose devices may be virtual."""

    def __init__(self, shape: DecoderConfig, config: LearnerConfig, mesh: Mesh, *, num_microbatches: int) -> None:
        self._config, self._mesh = config, mesh
        # As a loop in any case: memory is nearly the same, and compiling takes a fraction of the time.
        compute = dataclasses.replace(ComputeConfig.of(config), unroll_layers=1)
        actor = abstract_decoder(shape, compute, param_dtype=config.param_dtype)
        if config.lora is not None:
            add_adapters(actor, config.lora)
        self.actor = AbstractNetwork.of(actor, mesh)
        self.critic = AbstractNetwork.of(nnx.eval_shape(Critic.from_decoder, actor), mesh)
        rows = num_slots(num_microbatches), config.rows_per_microbatch, config.row_tokens
        dtypes = {"token_ids": jnp.int32, "positions": jnp.int32, "segment_ids": jnp.int32, "loss_mask": jnp.bool_}
        arrays = {name: jax.ShapeDtypeStruct(rows, dtypes.get(name, jnp.float32)) for name in Batch._fields}
        self.batch = _placed(Batch(**arrays), batch_sharding(mesh))

    def lowered(self) -> Iterator[tuple[str, jax.stages.Lowered]]:
        """(name, step) of one PPO update, in its order: critic's targets, critic step, actor step."""
        ppo, signal = self._config.ppo, self.batch.rewards
        critic_losses, critic_scores = critic_functions(self._config)
        yield "targets", self._score(self.critic, critic_scores["targets"])
        targets = Targets(returns=signal, old_values=None if ppo.value_clip is None else signal)
        yield "critic", self._step(self.critic, critic_losses["value"], targets)
        targets = Targets(
            advantages=signal,
            old_logprobs=signal if ppo.minibatches > 1 else None,
            ref_logprobs=signal if ppo.kl_coef > 0 else None,
        )
        yield "actor", self._step(self.actor, actor_functions(self._config)[0]["ppo"], targets)

    def _step(self, network: AbstractNetwork, loss: Any, targets: Targets) -> jax.stages.Lowered:
        step: Any = make_train_step(network.graphdef, loss, state_shardings=network.shardings)
        scalars = step_scalars(IDLE_OPTIMIZER, temperature=1.0)
        with jax.set_mesh(self._mesh):
            return step.lower(network.state, self.batch, targets, np.int32(1), scalars, network.frozen)

    def _score(self, network: AbstractNetwork, score: Any) -> jax.stages.Lowered:
        function: Any = make_score(network.graphdef, score)
        scalars = {"temperature": np.float32(1.0)}
        with jax.set_mesh(self._mesh):
            return function.lower(network.state.params, self.batch, np.int32(1), scalars, network.frozen)


def device_bytes(tree: Any) -> int:
    """Bytes that one device holds of placed shapes."""
    leaves = jax.tree.leaves(tree)
    return sum(int(np.prod(leaf.sharding.shard_shape(leaf.shape))) * leaf.dtype.itemsize for leaf in leaves)


def _placed(tree: Any, shardings: Any) -> Any:
    """Shapes with their places; one sharding may stand for a whole subtree."""

    def with_sharding(sharding: NamedSharding, part: Any) -> Any:
        return jax.tree.map(lambda leaf: jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=sharding), part)

    return jax.tree.map(with_sharding, shardings, tree, is_leaf=lambda leaf: isinstance(leaf, NamedSharding))
