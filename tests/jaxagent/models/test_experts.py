"""Mixtures of experts: the grouped computation against an obvious loop, routing and its replay, the router's loss."""

from __future__ import annotations

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch
from flax import nnx
from transformers.models.qwen3_moe.modeling_qwen3_moe import load_balancing_loss_func

from jaxagent.config.model import ScratchModelConfig
from jaxagent.models.config import ComputeConfig
from jaxagent.models.decoder import new_decoder
from jaxagent.models.experts import balance_of, choose_experts, router_probs
from jaxagent.models.families import from_scratch
from jaxagent.models.grouped import ExpertWeights, assign_slots, expert_mixture

NUM_TOKENS, NUM_EXPERTS, PER_TOKEN, HIDDEN, WIDTH = 37, 5, 2, 12, 20
SMALL = ScratchModelConfig(
    family="qwen3_moe", vocab_size=300, num_layers=2, hidden_size=64, intermediate_size=24, num_heads=2,
    num_kv_heads=1, num_experts=6, experts_per_token=2,
)  # fmt: skip


def _ids(kind: str) -> np.ndarray:
    rng = np.random.default_rng(0)
    ids = np.stack([rng.permutation(NUM_EXPERTS)[:PER_TOKEN] for _ in range(NUM_TOKENS)]).astype(np.int32)
    if kind == "all to two experts":
        ids[:] = [3, 1]
    if kind == "some held elsewhere":
        ids[ids == 2] = -4
        ids[ids == 0] = NUM_EXPERTS
    return ids


def _inputs() -> tuple[jax.Array, jax.Array, ExpertWeights]:
    rng = np.random.default_rng(1)
    draw = partial(rng.standard_normal, dtype=np.float32)
    wide = (NUM_EXPERTS, HIDDEN, WIDTH)
    experts = ExpertWeights(draw(wide), draw(wide), draw((NUM_EXPERTS, WIDTH, HIDDEN)))
    inputs = draw((NUM_TOKENS, HIDDEN)), rng.random((NUM_TOKENS, PER_TOKEN), np.float32), experts
    return jax.tree.map(jnp.asarray, inputs)


def _obvious_mixture(x, ids, weights, experts):
    """Every expert computes every token; what isn't asked for counts nothing."""
    wide = jax.nn.silu(jnp.einsum("ND,EDF->ENF", x, experts.gate)) * jnp.einsum("ND,EDF->ENF", x, experts.up)
    all_END = jnp.einsum("ENF,EFD->END", wide, experts.down)
    chosen_NE = (jax.nn.one_hot(ids, NUM_EXPERTS) * weights[..., None]).sum(axis=1)
    return jnp.einsum("END,NE->ND", all_END, chosen_NE)


def test_experts_of_a_chunk_at_a_time_give_the_same_outputs_and_gradients():
    config, token_ids = from_scratch(SMALL), np.arange(48, dtype=np.int32).reshape(2, 24)
    positions, segments = np.tile(np.arange(24, dtype=np.int32), (2, 1)), np.ones((2, 24), np.int32)

    def computed(compute: ComputeConfig):
        graphdef, params = nnx.split(new_decoder(config, compute, seed=0), nnx.Param)

        def loss(params):
            hidden = nnx.merge(graphdef, params)(token_ids, positions, segments)
            return jnp.square(hidden).sum(), hidden

        return jax.jit(jax.grad(loss, has_aux=True))(params)

    in_chunks, at_once = computed(ComputeConfig(expert_chunk_tokens=10)), computed(ComputeConfig())
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-5), in_chunks, at_once)


@pytest.mark.parametrize("block_rows", [1, 8, 64])
@pytest.mark.parametrize("kind", ["spread", "all to two experts", "some held elsewhere"])
def test_a_mixture_and_its_gradients_are_those_of_the_obvious_loop(kind, block_rows):
    ids, (x, weights, experts) = _ids(kind), _inputs()

    @partial(jax.jit, static_argnums=0)
    def with_gradients(mixture, *inputs):
        return jax.value_and_grad(lambda *inputs: jnp.sin(mixture(*inputs)).sum(), argnums=(0, 1, 2))(*inputs)

    def grouped(x, weights, experts):
        return expert_mixture(x, ids, weights, experts, activation=jax.nn.silu, block_rows=block_rows)

    def obvious(x, weights, experts):
        return _obvious_mixture(x, ids, weights, experts)

    with jax.default_matmul_precision("highest"):
        np.testing.assert_allclose(grouped(x, weights, experts), obvious(x, weights, experts), atol=1e-3, rtol=1e-4)
        got, expected = with_gradients(grouped, x, weights, experts), with_gradients(obvious, x, weights, experts)
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, atol=2e-2, rtol=2e-3), got, expected)


@pytest.mark.parametrize("kind", ["spread", "all to two experts", "some held elsewhere"])
def test_each_pair_has_one_slot_in_a_block_of_its_expert_and_others_take_no_block(kind):
    ids, rows = _ids(kind), 8
    slots = jax.tree.map(np.asarray, assign_slots(ids, num_experts=NUM_EXPERTS, block_rows=rows))
    held = (ids >= 0) & (ids < NUM_EXPERTS)
    pairs = np.arange(ids.size).reshape(ids.shape)
    np.testing.assert_array_equal(slots.pair_of_slot[slots.slot_of_pair[held]], pairs[held])
    assert (slots.slot_of_pair[~held] == len(slots.pair_of_slot)).all()
    assert (slots.pair_of_slot < ids.size).sum() == held.sum()
    np.testing.assert_array_equal(slots.expert_of_block[slots.slot_of_pair[held] // rows], ids[held])
    assert slots.num_blocks == sum(-(-(ids == expert).sum() // rows) for expert in range(NUM_EXPERTS))


def test_memory_follows_the_pairs_and_not_the_number_of_experts():
    def temporary_bytes(num_experts: int) -> int:
        wide, narrow = ((num_experts, 64, 128), (num_experts, 128, 64))
        experts = ExpertWeights(*(jax.ShapeDtypeStruct(shape, np.float32) for shape in (wide, wide, narrow)))
        mixture = jax.jit(partial(expert_mixture, activation=jax.nn.silu, block_rows=16))
        x, ids = jax.ShapeDtypeStruct((2048, 64), np.float32), jax.ShapeDtypeStruct((2048, 2), np.int32)
        weights = jax.ShapeDtypeStruct((2048, 2), np.float32)
        return mixture.lower(x, ids, weights, experts).compile().memory_analysis().temp_size_in_bytes

    assert temporary_bytes(64) < 1.5 * temporary_bytes(4)


def _decoder(**compute):
    return new_decoder(from_scratch(SMALL), ComputeConfig(**compute), seed=0)


def _tokens() -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    token_ids = np.random.default_rng(2).integers(0, 300, (2, 24)).astype(np.int32)
    return token_ids, np.tile(np.arange(24, dtype=np.int32), (2, 1)), np.ones((2, 24), np.int32)


@nnx.jit
def _forward(decoder, tokens, routing):
    return decoder(*tokens, routing_BTLK=routing)


def test_replaying_the_routers_own_choice_changes_nothing_and_another_choice_does():
    experts = jax.tree.map(lambda stacked: stacked[0], _decoder().layers.mlp)
    x_BTD = jnp.asarray(np.random.default_rng(4).normal(size=(2, 24, 64)).astype(np.float32))
    own, _ = choose_experts(router_probs(x_BTD, experts.router[...]), 2, normalize=True)
    call = nnx.jit(lambda experts, routing: experts(x_BTD, jnp.ones((2, 24), jnp.int32), routing_BTK=routing)[0])
    free = call(experts, None)
    np.testing.assert_allclose(call(experts, own), free, atol=1e-6)
    other = call(experts, (own + 1) % 6)
    assert (np.abs(other - free).max(axis=-1) > 1e-5).all()


def test_tokens_without_a_record_are_routed_freely_and_records_act_from_their_token_on():
    decoder, tokens = _decoder(), _tokens()
    unknown = np.full((2, 24, 2, 2), -1, np.int32)
    free = _forward(decoder, tokens, None)
    np.testing.assert_allclose(_forward(decoder, tokens, unknown), free, atol=1e-6)
    known = unknown.copy()
    known[:, 12:] = np.random.default_rng(5).permutation(6)[:2]
    replayed = _forward(decoder, tokens, known)
    np.testing.assert_allclose(replayed[:, :12], free[:, :12], atol=1e-6)
    assert np.abs(replayed[:, 12:] - free[:, 12:]).max() > 1e-3


def test_the_router_learns_from_replayed_tokens():
    decoder, tokens = _decoder(), _tokens()
    graphdef, params = nnx.split(decoder, nnx.Param)
    routing = np.broadcast_to(np.array([4, 1], np.int32), (2, 24, 2, 2))
    gradient = jax.grad(lambda params: jnp.sin(nnx.merge(graphdef, params)(*tokens, routing_BTLK=routing)).sum())(
        params
    )
    per_expert = np.abs(gradient["layers"]["mlp"]["gate"].get_value()).sum(axis=(0, 2, 3))
    assert (np.flatnonzero(per_expert) == [1, 4]).all()
    assert np.abs(gradient["layers"]["mlp"]["router"].get_value()).max() > 0


def test_the_router_stays_float32_beside_a_bfloat16_decoder():
    x = np.random.default_rng(0).normal(size=(1, 50, 64)).astype(jnp.bfloat16)
    router = np.random.default_rng(1).normal(size=(64, 6)).astype(np.float32)
    logits = np.asarray(x, np.float64) @ router.astype(np.float64)
    expected = np.exp(logits) / np.exp(logits).sum(axis=-1, keepdims=True)
    np.testing.assert_allclose(router_probs(jnp.asarray(x), jnp.asarray(router)), expected, atol=1e-5)


def test_the_balance_of_one_segment_is_the_load_balancing_loss_of_transformers():
    rng = np.random.default_rng(3)
    logits = rng.normal(size=(1, 40, 6)).astype(np.float32)
    probs = jax.nn.softmax(logits)
    ids, _ = choose_experts(probs, 2, normalize=True)
    expected = load_balancing_loss_func((torch.tensor(logits[0]),), num_experts=6, top_k=2)
    segment_ids = np.ones((1, 40), np.int32)
    assert float(balance_of(probs, ids, segment_ids).mean()) == pytest.approx(float(expected), rel=1e-5)
    packed_ids = np.repeat([[1, 2, 0]], [15, 20, 5], axis=1).astype(np.int32)
    packed = balance_of(probs, ids, packed_ids)[0]
    for start, end in ((0, 15), (15, 35)):
        alone = load_balancing_loss_func((torch.tensor(logits[0, start:end]),), num_experts=6, top_k=2)
        assert float(packed[start:end].mean()) == pytest.approx(float(alone), rel=1e-5)


def test_training_on_the_balance_alone_evens_out_the_experts():
    decoder, tokens = _decoder(), _tokens()
    # A router that prefers two experts for whatever it sees.
    router = decoder.layers.mlp.router[...]
    decoder.layers.mlp.router[...] = router.at[:, :, :2].multiply(20)
    graphdef, params = nnx.split(decoder, nnx.Param)

    @jax.jit
    def step(params):
        def loss(params):
            return nnx.merge(graphdef, params).run(*tokens, with_balance=True)[1].mean()

        value, slope = jax.value_and_grad(loss)(params)
        return value, jax.tree.map(lambda p, g: p - 0.01 * g, params, slope)

    first, params = step(params)
    for _ in range(30):
        last, params = step(params)
    assert first > 2.1 and last < 2 + 0.5 * (first - 2)  # 2 experts a token: 2 is even use
