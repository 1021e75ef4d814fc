"""Jitted steps over packed microbatches: score a batch, or take one optimizer step on it. Pure; no clock, no log."""

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import optax
from flax import nnx
from jaxtyping import Array, Float, Int

from jaxagent.batches.batch import Batch
from jaxagent.config.stages import OptimizerConfig
from jaxagent.learner.losses import Loss, PerToken, Scalars, Score
from jaxagent.learner.types import StepOutput, Targets, TrainState
from jaxagent.mesh.sharding import axis_names

Step = Callable[..., tuple[TrainState, StepOutput]]

HYPERPARAMS = ("b1", "b2", "eps", "weight_decay", "max_grad_norm")
"""Numbers of OptimizerConfig that the optimizer's state holds."""


def make_optimizer(cfg: OptimizerConfig) -> optax.GradientTransformation:
    """AdamW behind a global-norm clip, moments in float32. The learning rate is applied by the step.

    The numbers live in the optimizer's state (inject_hyperparams), so stages that differ in them share a compilation.
    """

    def build(
        b1: float, b2: float, eps: float, weight_decay: float, max_grad_norm: float
    ) -> optax.GradientTransformation:
        return optax.chain(
            optax.clip_by_global_norm(max_grad_norm),
            optax.scale_by_adam(b1=b1, b2=b2, eps=eps),
            optax.add_decayed_weights(weight_decay, mask=_is_matrix),
        )

    return optax.inject_hyperparams(build)(
        b1=cfg.b1, b2=cfg.b2, eps=cfg.eps, weight_decay=cfg.weight_decay, max_grad_norm=cfg.max_grad_norm
    )


def init_train_state(params: Any, cfg: OptimizerConfig, *, master: Any = None) -> TrainState:
    """A fresh optimizer around `params`, and around the `master` of an earlier one where there was one.

    Steps of reinforcement learning are far smaller than what separates two neighbouring bfloat16 numbers: added to
    parameters of that type they would round to nothing. So these are only the rounded copy of a float32 master.
    """
    if master is None and any(param.dtype != jnp.float32 for param in jax.tree.leaves(params)):
        master = jax.tree.map(lambda param: param.astype(jnp.float32), params)
    moments_like = jax.tree.map(lambda param: jnp.zeros(param.shape, jnp.float32), params)
    opt_state = make_optimizer(cfg).init(moments_like)
    # Two arrays, since a step gives away each buffer of its state once.
    return TrainState(
        params=params,
        opt_state=opt_state,
        num_steps=jnp.zeros((), jnp.int32),
        num_skipped=jnp.zeros((), jnp.int32),
        master=master,
    )


def make_train_step(graphdef: nnx.GraphDef, loss: Loss, *, state_shardings: TrainState | None = None) -> Step:
    """Returns jitted (state, batch, targets, num_microbatches, scalars, frozen) -> (state, output).

    The gradient is the sum over the first num_microbatches slots of axis M; `scalars` holds learning_rate,
    warmup_updates, decay_updates, what the loss reads, and those of HYPERPARAMS that replace the numbers in the state
    (a resumed run may change them). One compilation a batch shape, since the slots in use are data. `state` is donated.
    `frozen` holds the parameters that no gradient is taken of; None: there are none. A step whose loss or gradient
    isn't finite changes nothing and counts itself.
    """
    optimizer = make_optimizer(OptimizerConfig.model_validate({"learning_rate": 1.0}))  # the state holds its numbers

    def micro_loss(params: Any, frozen: Any, batch: Batch, targets: Targets, scalars: Scalars):
        return loss(_module(graphdef, params, frozen), batch, targets, scalars)

    @partial(jax.jit, donate_argnums=0, out_shardings=(state_shardings, None))
    def train_step(
        state: TrainState,
        batch: Batch,
        targets: Targets,
        num_microbatches: Int[Array, ""],
        scalars: dict[str, Float[Array, ""]],
        frozen: Any = None,
    ) -> tuple[TrainState, StepOutput]:
        gradient = jax.value_and_grad(micro_loss, has_aux=True)

        def one_microbatch(index: Int[Array, ""], micro: tuple[Batch, Targets]):
            (loss_value, per_token), grads = gradient(state.params, frozen, *micro, scalars)
            return (loss_value, grads), per_token

        (loss_value, grads), per_token = _accumulate(one_microbatch, (batch, targets), num_microbatches)
        grad_norm = optax.tree.norm(grads)
        finite = jnp.isfinite(loss_value) & jnp.isfinite(grad_norm)
        given = {name: scalars[name] for name in HYPERPARAMS if name in scalars}
        before = state.opt_state._replace(hyperparams=state.opt_state.hyperparams | given)
        exact = state.params if state.master is None else state.master
        updates, opt_state = optimizer.update(grads, before, exact)
        rate = _learning_rate(scalars, state.num_steps)
        exact = jax.tree.map(lambda p, u: p - rate * u, exact, updates)
        params = jax.tree.map(lambda new, p: new.astype(p.dtype), exact, state.params)
        keep = partial(jnp.where, finite)
        new_state = TrainState(
            params=jax.tree.map(keep, params, state.params),
            opt_state=jax.tree.map(keep, opt_state, state.opt_state),
            num_steps=state.num_steps + 1,
            num_skipped=state.num_skipped + jnp.where(finite, 0, 1),
            master=None if state.master is None else jax.tree.map(keep, exact, state.master),
        )
        return new_state, StepOutput(
            loss=loss_value, grad_norm=grad_norm, learning_rate=rate, finite=finite, per_token=per_token
        )

    return train_step


def make_score(graphdef: nnx.GraphDef, score: Score) -> Callable[..., dict[str, Float[Array, "M B T"]]]:
    """Returns jitted (params, batch, num_microbatches, scalars, frozen) -> what `score` says of every token."""

    @jax.jit
    def score_batch(
        params: Any, batch: Batch, num_microbatches: Int[Array, ""], scalars: Mapping[str, Array], frozen: Any = None
    ):
        module = _module(graphdef, params, frozen)
        _, per_token = _accumulate(lambda _, micro: ((), score(module, micro, scalars)), batch, num_microbatches)
        return per_token

    return score_batch


def _module(graphdef: nnx.GraphDef, params: Any, frozen: Any) -> nnx.Module:
    return nnx.merge(graphdef, params) if frozen is None else nnx.merge(graphdef, params, frozen)


def _accumulate(
    one_microbatch: Callable[[Int[Array, ""], Any], tuple[Any, PerToken]], inputs: Any, num_microbatches: Int[Array, ""]
) -> tuple[Any, dict[str, Float[Array, "M B T"]]]:
    """(sum, per_token) of one_microbatch over the slots in use: `inputs` is [M, ...], unused slots give 0."""

    def slot(index: Int[Array, ""]) -> Any:
        return jax.tree.map(lambda array: jax.lax.dynamic_index_in_dim(array, index, keepdims=False), inputs)

    num_slots = jax.tree.leaves(inputs)[0].shape[0]
    sums, per_token = jax.eval_shape(lambda: one_microbatch(jnp.int32(0), slot(jnp.int32(0))))
    start = (
        jax.tree.map(lambda x: jnp.zeros(x.shape, jnp.float32), sums),
        jax.tree.map(lambda x: jnp.zeros((num_slots, *x.shape), jnp.float32), per_token),
    )

    def body(index: Int[Array, ""], carry: tuple[Any, Any]) -> tuple[Any, Any]:
        sums, per_token = carry
        more, tokens = one_microbatch(index, slot(index))
        sums = jax.tree.map(lambda total, x: total + x.astype(jnp.float32), sums, more)
        per_token = jax.tree.map(
            lambda all_, x: jax.lax.dynamic_update_index_in_dim(all_, x, index, 0), per_token, tokens
        )
        return sums, per_token

    return jax.lax.fori_loop(0, num_microbatches, body, start)


def _learning_rate(scalars: Mapping[str, Float[Array, ""]], num_steps: Int[Array, ""]) -> Float[Array, ""]:
    """Rises linearly over warmup_updates; falls linearly to a tenth over decay_updates, where there are any."""
    rise = jnp.minimum(1.0, (num_steps + 1) / jnp.maximum(scalars["warmup_updates"], 1.0))
    fall = jnp.minimum(1.0, (num_steps + 1) / jnp.maximum(scalars["decay_updates"], 1.0))
    decay = jnp.where(scalars["decay_updates"] > 0, 1.0 - 0.9 * fall, 1.0)
    return scalars["learning_rate"] * rise * decay


def _is_matrix(params: Any) -> Any:
    """Weight decay is for matrices: norms and biases have one axis, beside the axis over stacked layers."""

    def decays(variable: nnx.Variable) -> nnx.Variable:
        names = axis_names(variable) or (None,) * variable.get_value().ndim
        return variable.replace(sum(name != "layers" for name in names) > 1)

    return jax.tree.map(decays, params, is_leaf=lambda leaf: isinstance(leaf, nnx.Variable))
