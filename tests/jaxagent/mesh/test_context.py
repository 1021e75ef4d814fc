"""Rows split along their length: the order of their chunks, and attention and losses that don't notice."""

from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxagent.config.learner import LearnerConfig, MeshConfig
from jaxagent.config.load import ConfigError, load_config
from jaxagent.learner.logprobs import token_logprobs
from jaxagent.mesh.context import from_zigzag, to_zigzag
from jaxagent.mesh.sharding import make_mesh
from jaxagent.models.attention import attend
from jaxagent.models.config import ComputeConfig

SEGMENTS = np.stack([np.repeat([1, 2, 3, 0], [5, 61, 20, 10]), np.repeat([1, 2], [33, 63])]).astype(np.int32)


def mesh_of(**axes):
    return jax.set_mesh(make_mesh(MeshConfig(**axes), rows_per_microbatch=8))


@pytest.mark.parametrize("devices", [1, 2, 4, 8])
def test_device_d_holds_chunks_d_and_its_mirror_and_the_way_back_restores_them(devices):
    row = np.arange(2 * devices * 3, dtype=np.float32).reshape(1, -1)
    chunks = np.split(row[0], 2 * devices)
    expected = [np.concatenate([chunks[d], chunks[2 * devices - 1 - d]]) for d in range(devices)]
    with mesh_of(context=devices):
        zigzag, back = jax.jit(lambda x: (to_zigzag(x), from_zigzag(to_zigzag(x))))(row)
    np.testing.assert_array_equal(zigzag[0], np.concatenate(expected) if devices > 1 else row[0])
    np.testing.assert_array_equal(back, row)


def attention_with_gradients(compute, window):
    rng = np.random.default_rng(0)
    shapes = [(2, 96, heads, 8) for heads in (4, 2, 2, 4)]
    q, k, v, cotangent = (rng.normal(size=shape).astype(np.float32) for shape in shapes)
    cotangent *= (SEGMENTS != 0)[:, :, None, None]  # what padding computes means nothing

    def natural(q, k, v):
        out = attend(*map(to_zigzag, (q, k, v, SEGMENTS)), compute, window=window)
        return from_zigzag(out)

    out, pull = jax.vjp(natural, q, k, v)
    return out * (SEGMENTS != 0)[:, :, None, None], *pull(cotangent)


@pytest.mark.parametrize("window", [None, 20])
@pytest.mark.parametrize(
    "mesh",
    [{"context": 2}, {"context": 8}, {"context": 2, "tensor": 2, "data": 2}, {"context": 2, "tensor": 4}],
    ids=str,
)
def test_queries_of_a_part_see_the_keys_of_the_whole_row(mesh, window):
    compute = ComputeConfig(attention="blockwise", block_q=8, block_kv=16)
    call = jax.jit(lambda: attention_with_gradients(compute, window))
    expected = jax.jit(lambda: attention_with_gradients(ComputeConfig(attention="masked"), window))()
    with mesh_of(**mesh):
        for got, want in zip(call(), expected, strict=True):
            np.testing.assert_allclose(got, want, atol=1e-5)


def test_a_split_row_gathers_keys_and_never_squares_them():
    compute = ComputeConfig(attention="blockwise", block_q=8, block_kv=8)
    with mesh_of(context=8):
        text = jax.jit(lambda: attention_with_gradients(compute, None)).lower().compile().as_text()
    assert "all-gather" in text and "reduce-scatter" in text, "keys go out, their gradients come back as sums"
    assert "96,96]" not in text, "no dense mask or square of scores"


def test_chunked_logprobs_of_split_rows_are_those_of_whole_rows():
    rng = np.random.default_rng(1)
    hidden = rng.normal(size=(2, 64, 8)).astype(np.float32)
    head = rng.normal(size=(8, 11)).astype(np.float32)
    token_ids = rng.integers(0, 11, (2, 64)).astype(np.int32)

    def scored(head, chunk_tokens):
        pair = token_logprobs(hidden, token_ids, head.T, temperature=0.7, chunk_tokens=chunk_tokens)
        return jnp.square(pair[0]).sum() + pair[1].sum(), pair

    def call(chunk_tokens):
        return jax.jit(jax.value_and_grad(lambda head: scored(head, chunk_tokens), has_aux=True))(head)

    (expected, pair), gradient = call(128)
    with mesh_of(context=4, data=2):
        (got, pair_there), gradient_there = call(4)
    np.testing.assert_allclose(got, expected, rtol=1e-5)
    np.testing.assert_allclose(gradient_there, gradient, rtol=1e-4, atol=1e-4)
    for there, here in zip(pair_there, pair, strict=True):
        np.testing.assert_allclose(there, here, atol=1e-5)


def test_rows_that_cannot_be_split_are_refused_with_a_length_that_can():
    with pytest.raises(ValueError, match="row_tokens=2056 must be a multiple of 8 x mesh.context = 32.*set it to 2080"):
        LearnerConfig(mesh=MeshConfig(context=4), row_tokens=2056)


def test_the_refusal_names_its_key_in_a_config():
    with pytest.raises(ConfigError, match=r"learner: row_tokens=\d+ must be a multiple"):
        load_config(Path("configs/smoke.yaml"), ["--learner.mesh.context", "2", "--learner.row_tokens", "1001"])
