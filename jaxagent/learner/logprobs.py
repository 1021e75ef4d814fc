"""Log-probs and entropy of the tokens of a row, without the logits of all positions ever existing at once.

Axes: B rows, T positions, C positions of a chunk, N chunks, V vocabulary, D hidden. Where the mesh splits rows along
their length, a chunk holds as many positions of each part.
"""

from collections.abc import Callable

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from jaxagent.mesh.context import num_shards
from jaxagent.mesh.sharding import num_token_shards
from jaxagent.models.chunks import largest_divisor

Logits = Callable[[Float[Array, "B C D"]], Float[Array, "B C V"]]


def token_logprobs(
    hidden_BTD: Float[Array, "B T D"],
    token_ids: Int[Array, "B T"],
    logits: Logits,
    *,
    temperature: Float[Array, ""] | float,
    chunk_tokens: int,
) -> tuple[Float[Array, "B T"], Float[Array, "B T"]]:
    """(logprobs, entropy) at each token's own position: of token t and of the distribution that it was drawn from.

    Both come from softmax(logits(hidden[t - 1]) / temperature), in float32; position 0 has no past and gets 0.
    At most about chunk_tokens x V logits are alive on a device; the backward pass computes them again.
    """
    num_rows, length, _ = hidden_BTD.shape
    parts = num_shards()
    in_all = chunk_tokens * num_token_shards()
    chunk = largest_divisor(length // parts, at_most=max(1, in_all // (num_rows * parts)))
    next_ids = jnp.roll(token_ids, -1, axis=1)

    @jax.checkpoint
    def score(hidden_BCD: Float[Array, "B C D"], next_ids_BC: Int[Array, "B C"]):
        logits_BCV = logits(hidden_BCD).astype(jnp.float32) / temperature
        log_z = jax.nn.logsumexp(logits_BCV, axis=-1)
        picked = jnp.take_along_axis(logits_BCV, next_ids_BC[..., None], axis=-1)[..., 0]
        mean_logit = jnp.sum(jnp.exp(logits_BCV - log_z[..., None]) * logits_BCV, axis=-1)
        return picked - log_z, log_z - mean_logit

    if chunk * parts == length:
        next_logprobs, next_entropy = score(hidden_BTD, next_ids)
    else:
        split = (_to_chunks(hidden_BTD, chunk, parts), _to_chunks(next_ids, chunk, parts))
        _, (logprobs_NBC, entropy_NBC) = jax.lax.scan(lambda _, inputs: (None, score(*inputs)), None, split)
        next_logprobs, next_entropy = _from_chunks(logprobs_NBC, parts), _from_chunks(entropy_NBC, parts)
    return shift_right(next_logprobs), shift_right(next_entropy)


def shift_right(next_BT: Float[Array, "B T"]) -> Float[Array, "B T"]:
    """What was computed from position t - 1 moves to position t; position 0 becomes 0."""
    return jnp.pad(next_BT[:, :-1], ((0, 0), (1, 0)))


def _to_chunks(array: Array, chunk: int, parts: int) -> Array:
    """[B, T, ...] -> [N, B, C, ...]. Rows stay whole on axis B and their parts in order on C, which are sharded."""
    num_rows, length = array.shape[:2]
    apart = array.reshape(num_rows, parts, length // (parts * chunk), chunk, *array.shape[2:])
    return jnp.moveaxis(apart, 2, 0).reshape(-1, num_rows, parts * chunk, *array.shape[2:])


def _from_chunks(array_NBC: Float[Array, "N B C"], parts: int) -> Float[Array, "B T"]:
    num_chunks, num_rows, size = array_NBC.shape
    apart = array_NBC.reshape(num_chunks, num_rows, parts, size // parts)
    return jnp.moveaxis(apart, 0, 2).reshape(num_rows, num_chunks * size)
