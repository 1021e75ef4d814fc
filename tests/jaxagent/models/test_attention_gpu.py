"""The fused kernels of a GPU compute what the definition does, and a decoder in bfloat16 runs on them.

Run with JAX_PLATFORMS=cuda: the other tests run on the CPU wherever they are.
"""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from jaxagent.batches.packing import MOST_SEGMENTS
from jaxagent.models import fused
from jaxagent.models.attention import attend, chosen_path, masked_attention
from jaxagent.models.config import ComputeConfig, DecoderConfig
from jaxagent.models.decoder import new_decoder

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(jax.default_backend() != "gpu", reason="JAX sees no GPU; JAX_PLATFORMS=cuda where there is one"),
]
BFLOAT16 = ComputeConfig(dtype="bfloat16")
# Qwen2.5-0.5B's heads, rows of three segments with padding behind them, and a length that no tile divides.
SHAPES = [(2, 512, 14, 2, 64), (1, 4096, 14, 2, 64), (2, 333, 4, 4, 128)]


def made(shape, *, dtype=jnp.bfloat16):
    batch, tokens, heads, kv, dim = shape
    rng = np.random.default_rng(0)
    q, k, v = (jnp.asarray(rng.standard_normal((batch, tokens, n, dim)), dtype) for n in (heads, kv, kv))
    cuts = np.sort(rng.integers(1, tokens, (batch, 3)), axis=1)
    segments = np.stack([np.searchsorted(row, np.arange(tokens), side="right") + 1 for row in cuts])
    segments[segments == 4] = 0
    return q, k, v, jnp.asarray(segments, jnp.int32)


@pytest.mark.parametrize("window", [None, 100])
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_cudnn_gives_the_outputs_and_gradients_of_the_definition(shape, window):
    q, k, v, segments = made(shape)
    window = None if window is None else jnp.int32(window)
    is_text = (segments > 0)[..., None, None]
    weights = jnp.asarray(np.random.default_rng(1).standard_normal(q.shape), jnp.float32) * is_text

    def fused(q, k, v):
        out = attend(q, k, v, segments, ComputeConfig(dtype="bfloat16", attention="cudnn"), window=window)
        return jnp.sum(out.astype(jnp.float32) * weights), out

    def exact(q, k, v):
        q, k, v = (x.astype(jnp.float32) for x in (q, k, v))
        out = masked_attention(q, k, v, segments, window=window)
        return jnp.sum(out * weights), out

    got, out = jax.jit(jax.grad(fused, argnums=(0, 1, 2), has_aux=True))(q, k, v)
    want, exact_out = jax.jit(jax.grad(exact, argnums=(0, 1, 2), has_aux=True))(q, k, v)
    np.testing.assert_allclose((out * is_text).astype(jnp.float32), exact_out * is_text, atol=0.03)
    for grad, exact_grad in zip(got, want, strict=True):
        scale = float(jnp.abs(exact_grad.astype(jnp.float32)).max())
        np.testing.assert_allclose(grad.astype(jnp.float32), exact_grad.astype(jnp.float32), atol=0.02 * scale)


def test_a_decoder_in_bfloat16_takes_them_and_others_do_not():
    assert chosen_path(4096, BFLOAT16, head_dim=64) == "cudnn"
    assert chosen_path(4096, ComputeConfig(dtype="float32"), head_dim=64) == "blockwise"
    assert chosen_path(131_072, BFLOAT16, head_dim=64) == ("cudnn" if fused.takes_segments() else "blockwise")
    assert chosen_path(131_072, BFLOAT16, head_dim=64, has_window=True) == "blockwise"
    assert chosen_path(4096, BFLOAT16, head_dim=256) == "blockwise"
    q, k, v, segments = made(SHAPES[0])
    program = jax.jit(lambda *arrays: attend(*arrays, compute=BFLOAT16)).lower(q, k, v, segments).as_text()
    assert "cudnn" in program


needs_places = pytest.mark.skipif(not fused.takes_segments(), reason="needs JAX 0.11 and a GPU like Hopper or later")


@needs_places
def test_no_mask_is_made_where_the_kernels_take_places():
    q, k, v, segments = made((1, 4096, 14, 2, 64))
    compiled = jax.jit(lambda *arrays: attend(*arrays, compute=BFLOAT16)).lower(q, k, v, segments).compile()
    memory: Any = compiled.memory_analysis()
    assert memory.temp_size_in_bytes < 4096 * 4096 * 2


@needs_places
@pytest.mark.parametrize("count", [MOST_SEGMENTS, MOST_SEGMENTS + 1])
def test_more_segments_than_places_give_nan_and_not_a_wrong_number(count):
    q, k, v, _ = made((1, 512, 4, 2, 64))
    segments = jnp.minimum(jnp.arange(512) // 20, count - 1)[None] + 1
    out = attend(q, k, v, segments, ComputeConfig(dtype="bfloat16", attention="cudnn")).astype(jnp.float32)
    if count > MOST_SEGMENTS:
        assert jnp.isnan(out).all()
    else:
        q, k, v = (x.astype(jnp.float32) for x in (q, k, v))
        exact = masked_attention(q, k, v, segments)
        np.testing.assert_allclose(out, exact, atol=0.03)


@needs_places
def test_a_row_of_padding_alone_disturbs_no_other():
    q, k, v, segments = made((3, 512, 4, 2, 64))
    segments = segments.at[1].set(0)

    def loss(q, k, v):
        return attend(q, k, v, segments, ComputeConfig(dtype="bfloat16", attention="cudnn")).astype(jnp.float32).sum()

    grads = jax.jit(jax.grad(loss, argnums=(0, 1, 2)))(q, k, v)
    assert all(jnp.isfinite(grad.astype(jnp.float32)).all() and not grad[1].any() for grad in grads)
    assert all(grad[0].any() and grad[2].any() for grad in grads)


@pytest.mark.parametrize(("remat", "passes"), [(True, 2), ("keep_attention", 1), ("keep_products", 1)])
def test_a_recomputed_layer_keeps_what_the_kernels_gave(remat, passes):
    shape = DecoderConfig(family="llama", vocab_size=64, hidden_size=128, intermediate_size=256, num_layers=2,
                          num_heads=2, num_kv_heads=1, head_dim=64)  # fmt: skip
    graphdef, params = nnx.split(new_decoder(shape, ComputeConfig(dtype="bfloat16", remat=remat), seed=0), nnx.Param)
    ids = jnp.zeros((1, 256), jnp.int32)

    def loss(params):
        return nnx.merge(graphdef, params)(ids, jnp.arange(256)[None], ids + 1).astype(jnp.float32).sum()

    program = jax.jit(jax.grad(loss)).lower(params).compile().as_text() or ""
    assert program.count('custom_call_target="__cudnn$fmha') == passes + 1
