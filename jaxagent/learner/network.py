"""A network on the mesh: its parameters, its optimizer, and the jitted functions that were made for it."""

from __future__ import annotations

from functools import cached_property
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from jaxagent.batches.minibatch import Minibatch
from jaxagent.config.stages import OptimizerConfig
from jaxagent.learner.losses import Loss
from jaxagent.learner.types import StepOutput, Targets, TrainState
from jaxagent.learner.update import HYPERPARAMS, Score, init_train_state, make_score, make_train_step
from jaxagent.mesh.sharding import param_shardings
from jaxagent.models.lora import trainable

RATES = ("learning_rate", "warmup_updates", "decay_updates")
IDLE_OPTIMIZER = OptimizerConfig.model_validate({"learning_rate": 1e-6})
"""Shapes the optimizer state of a network that no stage trains yet."""


class Network:
    """Actor or critic. Each jitted function is made once and compiles once a batch shape, over all stages.

    What a module marks as frozen is kept apart: it has no gradient and no optimizer state, and `state` doesn't hold it.
    """

    def __init__(self, module: nnx.Module, mesh: Mesh, *, losses: dict[str, Loss], scores: dict[str, Score]) -> None:
        self._mesh = mesh
        self._graphdef, params, frozen = nnx.split(module, trainable, nnx.Param)
        self._frozen = jax.device_put(frozen, param_shardings(frozen, mesh))
        abstract = jax.eval_shape(lambda params: init_train_state(params, IDLE_OPTIMIZER), params)
        self.shardings: TrainState = state_shardings(abstract, param_shardings(params, mesh), mesh)
        self._steps = {
            name: make_train_step(self._graphdef, loss, state_shardings=self.shardings) for name, loss in losses.items()
        }
        self._scores = {name: make_score(self._graphdef, score) for name, score in scores.items()}
        self.state: TrainState = self._init(self._place(params), IDLE_OPTIMIZER)

    @cached_property
    def frozen_checksum(self) -> int | None:
        """Of the frozen parameters' bits, whatever mesh they lie on; None where there are none."""
        leaves = jax.tree.leaves(self._frozen)
        return int(_checksum(leaves)) if leaves else None

    @property
    def params(self) -> Any:
        return self.state.params

    def module(self) -> nnx.Module:
        return nnx.merge(self._graphdef, self.state.params, self._frozen)

    def load(self, module: nnx.Module) -> None:
        """Takes a copy of the trained parameters of a module of the same architecture; the optimizer starts afresh."""
        self.state = self._init(self._place(nnx.state(module, trainable)), IDLE_OPTIMIZER)

    def start(self, cfg: OptimizerConfig) -> None:
        """A fresh optimizer for a stage; the parameters stay, to the last bit of their master copy."""
        self.state = self._init(self.state.params, cfg, self.state.master)

    def step(
        self, loss: str, minibatch: Minibatch, targets: Targets, cfg: OptimizerConfig, *, temperature: float = 1.0
    ) -> StepOutput:
        """One optimizer step by the named loss."""
        scalars = step_scalars(cfg, temperature=temperature)
        with jax.set_mesh(self._mesh):
            self.state, output = self._steps[loss](
                self.state, minibatch.batch, targets, minibatch.num_microbatches, scalars, self._frozen
            )
        return output

    def score(
        self, score: str, minibatch: Minibatch, *, temperature: float = 1.0, params: Any = None
    ) -> dict[str, jax.Array]:
        """Per-token results [M, B, T] of the named function, for the current or the given parameters."""
        with jax.set_mesh(self._mesh):
            return self._scores[score](
                self.params if params is None else params,
                minibatch.batch,
                minibatch.num_microbatches,
                {"temperature": np.float32(temperature)},
                self._frozen,
            )

    def num_compilations(self) -> dict[str, int]:
        return {name: function._cache_size() for name, function in (self._steps | self._scores).items()}

    def _place(self, params: Any) -> Any:
        """On the mesh, in buffers of their own: a step gives away the buffers of its state."""
        return jax.device_put(params, self.shardings.params, may_alias=False)

    def _init(self, params: Any, cfg: OptimizerConfig, master: Any = None) -> TrainState:
        init = jax.jit(
            lambda params, master: init_train_state(params, cfg, master=master), out_shardings=self.shardings
        )
        return init(params, master)


@jax.jit
def _checksum(leaves: list[jax.Array]) -> jax.Array:
    total = jnp.uint32(0)
    for leaf in leaves:
        bits = jax.lax.bitcast_convert_type(leaf, f"uint{8 * leaf.dtype.itemsize}").astype(jnp.uint32).reshape(-1)
        # Odd weights, so that a value which moves to another place changes the sum.
        places = 2 * jax.lax.iota(jnp.uint32, bits.size) + 1
        total = 31 * total + jnp.sum(bits * places, dtype=jnp.uint32)
    return total


@jax.jit
def copy_params(params: Any) -> Any:
    """Jitted, since parts of the arrays may lie on devices of other processes."""
    return jax.tree.map(jnp.copy, params)


def step_scalars(cfg: OptimizerConfig, *, temperature: float) -> dict[str, np.float32]:
    """The numbers that a train step reads beside its batch."""
    numbers = {name: getattr(cfg, name) for name in (*RATES, *HYPERPARAMS)}
    return {name: np.float32(number) for name, number in numbers.items()} | {"temperature": np.float32(temperature)}


def state_shardings(state: TrainState, params_sharding: Any, mesh: Mesh) -> TrainState:
    """Moments and master copy lie where their parameters lie; everything else is on every device."""
    whole = NamedSharding(mesh, PartitionSpec())
    structure = jax.tree.structure(state.params)

    def is_moments(node: Any) -> bool:
        return jax.tree.structure(node) == structure

    opt_state = jax.tree.map(
        lambda node: params_sharding if is_moments(node) else whole, state.opt_state, is_leaf=is_moments
    )
    master = None if state.master is None else params_sharding
    return TrainState(params=params_sharding, opt_state=opt_state, num_steps=whole, num_skipped=whole, master=master)
