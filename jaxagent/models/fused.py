"""cuDNN's attention over packed rows by the places of their segments: no mask, and no work between segments.

Axes: B rows, T tokens of a row, N query heads, K key/value heads, H head_dim, M segments of a row at most.

JAX offers these kernels (jax.nn.dot_product_attention, implementation="cudnn") with a mask of T x T, or without
segments. What takes segments is a function inside JAX, which this file alone imports. Before JAX 0.11 it places the
keys of grouped queries wrongly, and the kernels need a GPU of Hopper's generation or later.
"""

from __future__ import annotations

import functools
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from jaxagent.batches.packing import MOST_SEGMENTS

_MAX_INT32 = 2**31 - 1


@functools.cache
def takes_segments() -> bool:
    """Whether this JAX and its default devices have them."""
    if jax.default_backend() != "gpu" or jax.__version_info__ < (0, 11):
        return False
    generations = [str(device.compute_capability).partition(".")[0] for device in jax.local_devices()]
    return all(generation.isdigit() and int(generation) >= 9 for generation in generations)


def can_be_placed(q_BTNH: Array) -> bool:
    """Places are 32-bit offsets in numbers."""
    return q_BTNH.size <= _MAX_INT32


def is_fused_forward(primitive: Any) -> bool:
    """Whether a primitive of JAX is the forward pass of cuDNN's attention, with or without segments."""
    return primitive.name.startswith("dot_product_attention_fwd")


def packed_attention(
    q_BTNH: Float[Array, "B T N H"],
    k_BTKH: Float[Array, "B T K H"],
    v_BTKH: Float[Array, "B T K H"],
    segment_ids_BT: Int[Array, "B T"],
    *,
    scale: float,
) -> Float[Array, "B T N H"]:
    """As jaxagent.models.attention.attend, in bfloat16; 0 at padding.

    T is even. A row with more than MOST_SEGMENTS segments gives NaN everywhere: `pack` makes none.
    """
    from jax._src.cudnn import fused_attention_stablehlo as cudnn  # here, so that nothing else depends on where it lies

    starts_BM, lengths_BM, num_segments_B = segment_spans(segment_ids_BT, most=MOST_SEGMENTS)
    offsets_BM = jnp.pad(starts_BM, ((0, 0), (0, 1)), constant_values=-1)
    # The kernels write neither outputs nor gradients of padding; selecting on both sides keeps what lies there out.
    is_text_BT11 = (segment_ids_BT > 0)[..., None, None]
    q_BTNH, k_BTKH, v_BTKH = (jnp.where(is_text_BT11, x, 0) for x in (q_BTNH, k_BTKH, v_BTKH))
    out_BTNH: Any = cudnn.dot_product_attention(
        q_BTNH,
        k_BTKH,
        v_BTKH,
        q_seqlen=lengths_BM,
        kv_seqlen=lengths_BM,
        q_offsets=offsets_BM,
        kv_offsets=offsets_BM,
        scale=scale,
        mask_type=cudnn.MaskType.PADDING_CAUSAL,
    )
    empty = jnp.where((num_segments_B <= starts_BM.shape[1]).all(), 0.0, jnp.nan).astype(q_BTNH.dtype)
    return jnp.where(is_text_BT11, out_BTNH + empty, empty)


def segment_spans(
    segment_ids_BT: Int[Array, "B T"], *, most: int
) -> tuple[Int[Array, "B M"], Int[Array, "B M"], Int[Array, "B"]]:
    """(starts, lengths, how many): of each row's first `most` segments, in order, -1 where there are no more.

    A segment is a run of equal ids above 0.
    """
    padded_BT = jnp.pad(segment_ids_BT, ((0, 0), (1, 1)))
    changes_BT = padded_BT[:, 1:] != padded_BT[:, :-1]
    begins_BT = changes_BT[:, :-1] & (segment_ids_BT > 0)
    ends_BT = changes_BT[:, 1:] & (segment_ids_BT > 0)

    def places(marks_BT: Array) -> Int[Array, "B M"]:
        def of_row(marks_T: Array) -> Array:
            return jnp.nonzero(marks_T, size=most, fill_value=-1)[0].astype(jnp.int32)

        return jax.vmap(of_row)(marks_BT)

    starts_BM, last_BM = places(begins_BT), places(ends_BT)
    lengths_BM = jnp.where(starts_BM >= 0, last_BM - starts_BM + 1, -1)
    return starts_BM, lengths_BM, begins_BT.sum(axis=1)
