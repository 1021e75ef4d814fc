"""Causal attention over packed rows: a token sees the earlier tokens of its own segment.

Axes: B rows, T tokens of a row, N query heads, K key/value heads (N = K * G), H head_dim; q and s index queries and
keys of a tile. A segment is one contiguous run of equal segment_ids in a row, and 0 is padding, whose outputs mean
nothing. With a window a token sees the last `window` tokens only, itself included.

Three paths give the same numbers up to rounding:
    masked      all scores at once: for rows of a tile or two, and the oracle of the tests
    blockwise   tiles with a running softmax (jaxagent/models/blockwise.py): memory linear in T
    cudnn       NVIDIA's fused kernels, in bfloat16: told of segments by their places (jaxagent/models/fused.py), or,
                where there is a window or JAX or the GPU are too old for that, by a mask [T, T]

On a mesh (that of jax.set_mesh) each device computes its own rows and heads. Where rows are split along their length
(jaxagent/mesh/context.py) it gathers the keys and values of whole rows and computes its own queries.
"""

from __future__ import annotations

import math
from functools import partial
from typing import Literal

import jax
import jax.numpy as jnp
from jax.sharding import AbstractMesh, PartitionSpec
from jaxtyping import Array, Float, Int

from jaxagent.mesh import context
from jaxagent.mesh.sharding import BATCH_AXES
from jaxagent.models import fused
from jaxagent.models.blockwise import HIDDEN_SCORE, blockwise_attention, in_reach
from jaxagent.models.chunks import largest_divisor
from jaxagent.models.config import ComputeConfig

CUDNN_MAX_HEAD_DIM = 128
"""On every architecture, for the backward pass too."""
_CUDNN_MULTIPLE = 64
"""Rows are filled up to a multiple of it, so that tiles are whole."""


def attend(
    q_BTNH: Float[Array, "B T N H"],
    k_BTKH: Float[Array, "B T K H"],
    v_BTKH: Float[Array, "B T K H"],
    segment_ids_BT: Int[Array, "B T"],
    compute: ComputeConfig,
    *,
    scale: float | None = None,
    window: Int[Array, ""] | None = None,
) -> Float[Array, "B T N H"]:
    """Softmax(scale q k^T) v within each segment, causally, on the path that `compute` asks for.

    `scale` is 1 / sqrt(H) where None is given; `window` may be traced, so that layers which differ in it share a
    program. Where the mesh splits rows along their length all arrays are in zigzag order.
    """
    mesh, call = jax.sharding.get_abstract_mesh(), partial(_attend_locally, compute=compute, scale=scale)
    if not mesh.empty and mesh.size > 1:
        call = _over(mesh, compute, num_heads=q_BTNH.shape[2], num_kv=k_BTKH.shape[2], scale=scale)
    return call(q_BTNH, k_BTKH, v_BTKH, segment_ids_BT, window)


def _attend_locally(q_BTNH, k_BTKH, v_BTKH, segment_ids_BT, window, *, compute: ComputeConfig, scale: float | None):
    num_tokens = q_BTNH.shape[1]
    path = compute.attention
    if path == "auto":
        path = chosen_path(num_tokens, compute, head_dim=q_BTNH.shape[3], has_window=window is not None)
    if path == "masked":
        return masked_attention(q_BTNH, k_BTKH, v_BTKH, segment_ids_BT, scale=scale, window=window)
    if path == "cudnn":
        return cudnn_attention(q_BTNH, k_BTKH, v_BTKH, segment_ids_BT, scale=scale, window=window)
    block_q, block_kv = min(compute.block_q, num_tokens), min(compute.block_kv, num_tokens)
    padding = -num_tokens % math.lcm(block_q, block_kv)
    q_BTNH, k_BTKH, v_BTKH = _pad_tokens(q_BTNH, padding), _pad_tokens(k_BTKH, padding), _pad_tokens(v_BTKH, padding)
    segment_ids_BT = _pad_tokens(segment_ids_BT, padding)
    starts = jnp.arange(0, num_tokens + padding, block_q)
    out_BTNH = blockwise_attention(
        q_BTNH, k_BTKH, v_BTKH, segment_ids_BT, segment_ids_BT, starts, window, scale=scale, block_kv=block_kv
    )
    return out_BTNH[:, :num_tokens]


def chosen_path(
    num_tokens: int, compute: ComputeConfig, *, head_dim: int, has_window: bool = False
) -> Literal["masked", "blockwise", "cudnn"]:
    """The path that attention="auto" takes for rows of so many tokens on the default backend."""
    has_kernel = jax.default_backend() == "gpu" and compute.dtype == "bfloat16" and head_dim % 8 == 0
    needs_mask = has_window or not fused.takes_segments()
    if has_kernel and head_dim <= CUDNN_MAX_HEAD_DIM and (num_tokens <= compute.cudnn_max_tokens or not needs_mask):
        return "cudnn"
    return "masked" if num_tokens <= compute.masked_max_tokens else "blockwise"


def _over(mesh: AbstractMesh, compute: ComputeConfig, *, num_heads: int, num_kv: int, scale: float | None):
    """Heads are shared out over `tensor` where both kinds divide."""
    num_tensor = mesh.shape["tensor"]
    heads = "tensor" if num_heads % num_tensor == 0 and num_kv % num_tensor == 0 else None
    tokens, with_heads = PartitionSpec(BATCH_AXES, context.AXIS), PartitionSpec(BATCH_AXES, context.AXIS, heads)
    local = _attend_locally if mesh.shape[context.AXIS] == 1 else _attend_to_gathered
    return jax.shard_map(
        partial(local, compute=compute, scale=scale),
        mesh=mesh,
        in_specs=(with_heads, with_heads, with_heads, tokens, PartitionSpec()),
        out_specs=with_heads,
        check_vma=False,
    )


def _attend_to_gathered(q_BSNH, k_BSKH, v_BSKH, segment_ids_BS, window, *, compute: ComputeConfig, scale: float | None):
    """The two chunks of a device against whole rows. The gradients of keys and values go back as sums."""
    num_queries = q_BSNH.shape[1]
    k_BTKH, v_BTKH, segment_ids_BT = map(context.gather_row, (k_BSKH, v_BSKH, segment_ids_BS))
    block_q = largest_divisor(num_queries // 2, at_most=compute.block_q)
    block_kv = largest_divisor(k_BTKH.shape[1], at_most=compute.block_kv)
    within_chunk = jnp.arange(0, num_queries // 2, block_q)
    starts = jnp.concatenate([start + within_chunk for start in context.chunk_starts(num_queries)])
    return blockwise_attention(
        q_BSNH, k_BTKH, v_BTKH, segment_ids_BS, segment_ids_BT, starts, window, scale=scale, block_kv=block_kv
    )


def masked_attention(
    q_BTNH: Float[Array, "B T N H"],
    k_BTKH: Float[Array, "B T K H"],
    v_BTKH: Float[Array, "B T K H"],
    segment_ids_BT: Int[Array, "B T"],
    *,
    scale: float | None = None,
    window: Int[Array, ""] | None = None,
) -> Float[Array, "B T N H"]:
    """The definition, with all scores in memory."""
    batch, num_tokens, num_heads, head_dim = q_BTNH.shape
    num_kv = k_BTKH.shape[2]
    q_BTKGH = q_BTNH.reshape(batch, num_tokens, num_kv, num_heads // num_kv, head_dim)
    scores = jnp.einsum("BqKGH,BsKH->BKGqs", q_BTKGH, k_BTKH, preferred_element_type=jnp.float32)
    scores = scores * (head_dim**-0.5 if scale is None else scale)
    index_T = jnp.arange(num_tokens)
    visible = segment_ids_BT[:, :, None] == segment_ids_BT[:, None, :]
    visible = visible & in_reach(index_T, index_T, window)[None]
    probs = jax.nn.softmax(jnp.where(visible[:, None, None], scores, HIDDEN_SCORE), axis=-1).astype(v_BTKH.dtype)
    return jnp.einsum("BKGqs,BsKH->BqKGH", probs, v_BTKH).reshape(q_BTNH.shape)


def cudnn_attention(
    q_BTNH: Float[Array, "B T N H"],
    k_BTKH: Float[Array, "B T K H"],
    v_BTKH: Float[Array, "B T K H"],
    segment_ids_BT: Int[Array, "B T"],
    *,
    scale: float | None = None,
    window: Int[Array, ""] | None = None,
) -> Float[Array, "B T N H"]:
    """cuDNN's flash attention, forward and backward; q, k and v in bfloat16, on an NVIDIA GPU."""
    num_tokens = q_BTNH.shape[1]
    padding = -num_tokens % _CUDNN_MULTIPLE
    q_BTNH, k_BTKH, v_BTKH = _pad_tokens(q_BTNH, padding), _pad_tokens(k_BTKH, padding), _pad_tokens(v_BTKH, padding)
    segment_ids_BT = _pad_tokens(segment_ids_BT, padding)
    if window is None and fused.takes_segments() and fused.can_be_placed(q_BTNH):
        factor: float = q_BTNH.shape[3] ** -0.5 if scale is None else scale
        return fused.packed_attention(q_BTNH, k_BTKH, v_BTKH, segment_ids_BT, scale=factor)[:, :num_tokens]
    visible_B1TT = (segment_ids_BT[:, :, None] == segment_ids_BT[:, None, :])[:, None]
    if window is not None:  # traced, and so no argument of the kernel's own
        index_T = jnp.arange(num_tokens + padding)
        visible_B1TT = visible_B1TT & in_reach(index_T, index_T, window)[None, None]
    out_BTNH = jax.nn.dot_product_attention(
        q_BTNH, k_BTKH, v_BTKH, mask=visible_B1TT, is_causal=True, scale=scale, implementation="cudnn"
    )
    return out_BTNH[:, :num_tokens]


def _pad_tokens(x: Array, padding: int) -> Array:
    return x if padding == 0 else jnp.pad(x, ((0, 0), (0, padding)) + ((0, 0),) * (x.ndim - 2))
