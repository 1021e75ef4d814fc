"""Optimizer steps: how a batch is split changes nothing, and a bad step changes nothing at all."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from flax import nnx
from toys import VOCAB, random_trajectories, tiny_actor

from jaxagent.batches.batch import Batch
from jaxagent.batches.minibatch import Minibatch
from jaxagent.batches.packing import pack
from jaxagent.batches.sequences import to_sequence
from jaxagent.config.learner import LearnerConfig, MeshConfig, PPOConfig
from jaxagent.config.stages import OptimizerConfig
from jaxagent.learner.losses import make_actor_score, make_finetune_loss, make_ppo_loss
from jaxagent.learner.types import Targets
from jaxagent.learner.update import HYPERPARAMS, init_train_state, make_score, make_train_step
from jaxagent.mesh.sharding import make_mesh

ADAM = OptimizerConfig(learning_rate=1e-2, max_grad_norm=0.05, weight_decay=0.1)
SCALARS = {
    "temperature": np.float32(1),
    "learning_rate": np.float32(1e-2),
    "warmup_updates": np.float32(0),
    "decay_updates": np.float32(0),
}
SEQUENCES = [to_sequence(trajectory, row_tokens=64, vocab_size=VOCAB) for trajectory in random_trajectories(7)]
LAYOUTS = {"packed": (64, 4), "packed, rows one by one": (64, 1), "longer rows": (128, 2), "one row each": (64, 2)}


def padded(sequences, row_tokens, rows):
    """Every sequence in a row of its own."""
    packs = [pack([sequence], [1.0], row_tokens=row_tokens, rows_per_microbatch=1) for sequence in sequences]
    fields = [np.stack([field[0, 0] for field in column]) for column in zip(*(p.batch for p in packs), strict=True)]
    batch = Batch(*fields)._replace(loss_weights=fields[4] / len(sequences))
    fill = -len(sequences) % rows
    return Batch(*(np.pad(field, ((0, fill), (0, 0))).reshape(-1, rows, row_tokens) for field in batch))


def layout(name):
    row_tokens, rows = LAYOUTS[name]
    if name == "one row each":
        batch = padded(SEQUENCES, row_tokens, rows)
        return batch, np.int32(batch.token_ids.shape[0])
    packed = pack(SEQUENCES, [1.0] * 7, row_tokens=row_tokens, rows_per_microbatch=rows)
    return packed.batch, np.int32(packed.num_microbatches)


@functools.cache
def step_of(loss):
    return make_train_step(nnx.split(tiny_actor(), nnx.Param)[0], loss)


FINETUNE = make_finetune_loss(chunk_tokens=32)
PPO = make_ppo_loss(PPOConfig(), chunk_tokens=32)


def fresh_state():
    return init_train_state(nnx.split(tiny_actor(), nnx.Param)[1], ADAM)


def take_step(loss, batch, targets, num_microbatches):
    return step_of(loss)(fresh_state(), batch, targets, num_microbatches, SCALARS)


def gradient_of(state):
    """Adam's first moment after one step is 0.1 times the clipped gradient."""
    return jax.tree.leaves(state.opt_state.inner_state[1].mu)


@pytest.mark.parametrize("name", LAYOUTS)
def test_packed_padded_and_microbatched_gradients_are_the_same(name):
    advantages = {sequence.trajectory_id: index - 3.0 for index, sequence in enumerate(SEQUENCES)}

    def step(batch, num_microbatches):
        ids = batch.token_ids.reshape(-1, batch.token_ids.shape[-1])
        per_token = np.zeros(ids.shape, np.float32)
        for sequence in SEQUENCES:  # found by content, so this doesn't lean on the packing that is tested
            row, start = next(
                (row, start)
                for row in range(len(ids))
                for start in range(ids.shape[1])
                if np.array_equal(ids[row, start : start + sequence.num_tokens], sequence.token_ids)
            )
            per_token[row, start : start + sequence.num_tokens] = advantages[sequence.trajectory_id]
        targets = Targets(advantages=per_token.reshape(batch.token_ids.shape))
        return take_step(PPO, batch, targets, num_microbatches)

    (expected_state, expected), (state, output) = step(*layout("packed")), step(*layout(name))
    np.testing.assert_allclose(output.loss, expected.loss, atol=1e-6)  # terms of size 1 that nearly cancel
    np.testing.assert_allclose(output.grad_norm, expected.grad_norm, rtol=1e-4)
    for got, want in zip(gradient_of(state), gradient_of(expected_state), strict=True):
        np.testing.assert_allclose(got, want, rtol=1e-3, atol=1e-7)


def test_finetune_loss_is_the_mean_over_trajectories_of_the_mean_over_policy_tokens():
    actor = tiny_actor()
    forward = jax.jit(lambda ids, positions: actor.logits(actor(ids, positions, jnp.ones_like(ids))))
    means = []
    for sequence in SEQUENCES:
        ids = np.pad(sequence.token_ids, (0, 40 - sequence.num_tokens))[None]  # causal: what follows doesn't matter
        logits = forward(ids, np.arange(40)[None])[0]
        picked = [jax.nn.log_softmax(logits[t - 1])[sequence.token_ids[t]] for t in np.flatnonzero(sequence.loss_mask)]
        means.append(-np.mean(picked))
    batch, num_microbatches = layout("packed")
    _, output = take_step(FINETUNE, batch, Targets(), num_microbatches)
    np.testing.assert_allclose(output.loss, np.mean(means), rtol=1e-5)


def test_a_step_is_optax_adamw_behind_a_global_norm_clip():
    batch, num_microbatches = layout("packed")
    graphdef, params = nnx.split(tiny_actor(), nnx.Param)
    params = jax.tree.map(jnp.copy, params)
    flat = jax.tree.map(lambda x: x.reshape(-1, *x.shape[2:]), batch)
    grads = jax.jit(jax.grad(lambda p: FINETUNE(nnx.merge(graphdef, p), flat, Targets(), SCALARS)[0]))(params)
    matrices = jax.tree.map_with_path(lambda path, _: "norm" not in jax.tree_util.keystr(path), params)
    reference = optax.chain(
        optax.clip_by_global_norm(0.05), optax.adamw(1e-2, b1=0.9, b2=0.95, weight_decay=0.1, mask=matrices)
    )
    updates, _ = reference.update(grads, reference.init(params), params)
    expected = optax.apply_updates(params, updates)
    state, output = take_step(FINETUNE, batch, Targets(), num_microbatches)
    assert float(output.grad_norm) > 0.05
    for got, want in zip(jax.tree.leaves(state.params), jax.tree.leaves(expected), strict=True):
        np.testing.assert_allclose(got, want, rtol=1e-4, atol=1e-6)


def test_the_learning_rate_warms_up_linearly():
    batch, num_microbatches = layout("packed")
    state, rates = fresh_state(), []
    for _ in range(4):
        state, output = step_of(FINETUNE)(
            state, batch, Targets(), num_microbatches, SCALARS | {"warmup_updates": np.float32(3)}
        )
        rates.append(float(output.learning_rate))
    np.testing.assert_allclose(rates, [1e-2 / 3, 2e-2 / 3, 1e-2, 1e-2], rtol=1e-5)


def test_the_learning_rate_falls_linearly_to_a_tenth_and_stays_there():
    batch, num_microbatches = layout("packed")
    state, rates = fresh_state(), []
    for _ in range(4):
        scalars = SCALARS | {"decay_updates": np.float32(3)}
        state, output = step_of(FINETUNE)(state, batch, Targets(), num_microbatches, scalars)
        rates.append(float(output.learning_rate))
    np.testing.assert_allclose(rates, [0.7e-2, 0.4e-2, 0.1e-2, 0.1e-2], rtol=1e-5)


def test_a_batch_shape_compiles_once_whatever_it_holds():
    step, state = make_train_step(nnx.split(tiny_actor(), nnx.Param)[0], FINETUNE), fresh_state()
    for count in (1, 3, 7):
        packed = pack(SEQUENCES[:count], [0.0] * count, row_tokens=64, rows_per_microbatch=4)
        scalars = SCALARS | {"learning_rate": np.float32(1e-2 * count), "temperature": np.float32(count)}
        state, _ = step(state, packed.batch, Targets(), np.int32(packed.num_microbatches), scalars)
    assert step._cache_size() == 1


def test_slots_beyond_those_in_use_are_not_computed():
    batch, num_microbatches = layout("packed")
    clean_state, clean = take_step(FINETUNE, batch, Targets(), num_microbatches)
    dirty = batch._replace(loss_weights=batch.loss_weights.copy())
    dirty.loss_weights[num_microbatches:] = np.nan
    state, output = take_step(FINETUNE, dirty, Targets(), num_microbatches)
    assert float(output.loss) == float(clean.loss)
    for got, want in zip(jax.tree.leaves(state.params), jax.tree.leaves(clean_state.params), strict=True):
        np.testing.assert_array_equal(got, want)


@pytest.mark.parametrize("poison", [np.nan, np.inf])
def test_a_step_that_is_not_finite_changes_nothing_and_counts_itself(poison):
    batch, num_microbatches = layout("packed")
    advantages = np.where(batch.loss_mask, poison, 0).astype(np.float32)
    before = [np.asarray(leaf) for leaf in jax.tree.leaves(nnx.split(tiny_actor(), nnx.Param)[1])]
    state, output = take_step(PPO, batch, Targets(advantages=advantages), num_microbatches)
    assert not bool(output.finite) and int(state.num_skipped) == 1 and int(state.num_steps) == 1
    for got, want in zip(jax.tree.leaves(state.params), before, strict=True):
        np.testing.assert_array_equal(got, want)
    assert all(not np.asarray(leaf).any() for leaf in gradient_of(state))


def test_entropy_and_kl_terms_are_off_at_zero_and_count_when_on():
    batch, num_microbatches = layout("packed")
    zeros = np.zeros(batch.token_ids.shape, np.float32)
    reference = np.where(batch.loss_mask, -3.0, 0).astype(np.float32)
    losses = {}
    for name, cfg in {"off": PPOConfig(), "entropy": PPOConfig(entropy_coef=0.1), "kl": PPOConfig(kl_coef=0.1)}.items():
        targets = Targets(advantages=zeros, ref_logprobs=None if name == "off" else reference)
        _, output = take_step(make_ppo_loss(cfg, chunk_tokens=32), batch, targets, num_microbatches)
        losses[name] = float(output.loss)
        weights = batch.loss_weights
    assert losses["off"] == 0
    entropy = np.asarray(output.per_token["entropy"])
    np.testing.assert_allclose(losses["entropy"], -0.1 * (weights * entropy).sum(), rtol=1e-4)
    log_q = np.where(batch.loss_mask, reference - np.asarray(output.per_token["logprobs"]), 0)
    np.testing.assert_allclose(losses["kl"], 0.1 * (weights * (np.exp(log_q) - log_q - 1)).sum(), rtol=1e-4)


def test_scores_match_a_forward_pass_at_the_sampling_temperature():
    batch, num_microbatches = layout("packed, rows one by one")
    actor = tiny_actor()
    graphdef, params = nnx.split(actor, nnx.Param)
    score = make_score(graphdef, make_actor_score(chunk_tokens=32))
    got = score(params, batch, num_microbatches, {"temperature": np.float32(0.5)})["logprobs"]
    flat = jax.tree.map(lambda x: x.reshape(-1, x.shape[-1]), batch)
    logits = actor.logits(actor(flat.token_ids, flat.positions, flat.segment_ids)) / 0.5
    full = np.asarray(jax.nn.log_softmax(logits))
    for row, t in zip(*np.nonzero(flat.loss_mask), strict=True):
        np.testing.assert_allclose(
            got.reshape(flat.token_ids.shape)[row, t], full[row, t - 1, flat.token_ids[row, t]], rtol=1e-4
        )


def test_shorter_rows_keep_the_tokens_of_a_microbatch():
    config = LearnerConfig(row_tokens=64, rows_per_microbatch=2)
    mesh = make_mesh(MeshConfig(), rows_per_microbatch=2)
    shapes = [
        Minibatch.of(SEQUENCES, [0.0] * 7, config=config, row_tokens=row_tokens, mesh=mesh).batch.token_ids.shape
        for row_tokens in (64, 32)
    ]
    assert shapes == [(8, 2, 64), (8, 4, 32)]


def test_the_optimizers_numbers_can_change_between_steps_without_compiling_anew():
    batch, num_microbatches = layout("packed")
    step = make_train_step(nnx.split(tiny_actor(), nnx.Param)[0], FINETUNE)
    same = {name: np.float32(getattr(ADAM, name)) for name in HYPERPARAMS}
    plain, _ = take_step(FINETUNE, batch, Targets(), num_microbatches)
    given, _ = step(fresh_state(), batch, Targets(), num_microbatches, SCALARS | same)
    for got, want in zip(jax.tree.leaves(given), jax.tree.leaves(plain), strict=True):
        np.testing.assert_array_equal(got, want)
    tighter, _ = step(
        fresh_state(), batch, Targets(), num_microbatches, SCALARS | same | {"max_grad_norm": np.float32(0.005)}
    )
    np.testing.assert_allclose(
        optax.tree.norm(gradient_of(tighter)), 0.1 * np.asarray(optax.tree.norm(gradient_of(given))), rtol=1e-4
    )
    assert step._cache_size() == 1


def loss_drop(dtype, *, keeps_master=True, steps=60, rate=3e-6):
    """How far `steps` steps on one batch bring the loss down, and the last state."""
    batch, num_microbatches = layout("packed")
    params = jax.tree.map(lambda param: param.astype(dtype), nnx.split(tiny_actor(), nnx.Param)[1])
    state, losses = init_train_state(params, ADAM), []
    for _ in range(steps):
        scalars = SCALARS | {"learning_rate": np.float32(rate)}
        state, output = step_of(FINETUNE)(state, batch, Targets(), num_microbatches, scalars)
        losses.append(float(output.loss))
        if not keeps_master:
            state = state._replace(master=jax.tree.map(lambda param: param.astype(jnp.float32), state.params))
    return losses[0] - losses[-1], state


def test_steps_too_small_for_bfloat16_add_up_in_the_master_copy():
    exact, _ = loss_drop(jnp.float32)
    with_master, state = loss_drop(jnp.bfloat16)
    rounded, _ = loss_drop(jnp.bfloat16, keeps_master=False)
    assert with_master == pytest.approx(exact, rel=0.1)
    assert rounded < 0.3 * exact, "at this rate most updates of bfloat16 parameters round to nothing"
    assert {param.dtype for param in jax.tree.leaves(state.params)} == {jnp.dtype(jnp.bfloat16)}
    for param, master in zip(jax.tree.leaves(state.params), jax.tree.leaves(state.master), strict=True):
        np.testing.assert_array_equal(param, master.astype(jnp.bfloat16))


def test_float32_parameters_need_no_master_copy():
    assert fresh_state().master is None
