"""The fused kernels of a GPU compute what the definition does, and a decoder in bfloat16 runs on them.

Run with JAX_PLATFORMS=cuda: the other tests run on the CPU wherever they are.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxagent.models.attention import attend, chosen_path, masked_attention
from jaxagent.models.config import ComputeConfig

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
    assert chosen_path(131_072, BFLOAT16, head_dim=64) == "blockwise"
    assert chosen_path(4096, BFLOAT16, head_dim=256) == "blockwise"
    q, k, v, segments = made(SHAPES[0])
    program = jax.jit(lambda *arrays: attend(*arrays, compute=BFLOAT16)).lower(q, k, v, segments).as_text()
    assert "cudnn" in program
