"""Times a layer of experts, ours against jax.lax.ragged_dot, in alternating rounds; ends with one JSON line.

python scripts/bench_experts.py --tokens 8192 --experts 128 --per-token 8 --hidden 2048 --width 768 --dtype bfloat16
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from collections.abc import Callable
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jaxagent.models.grouped import ExpertWeights, expert_mixture


def ragged_mixture(x_ND, ids_NK, weights_NK, experts: ExpertWeights) -> jax.Array:
    """What expert_mixture computes, by three ragged products over the pairs in order of their experts."""
    order_P = jnp.argsort(ids_NK.reshape(-1), stable=True)
    sizes_E = jnp.bincount(ids_NK.reshape(-1), length=experts.gate.shape[0]).astype(jnp.int32)
    x_PD = x_ND[order_P // ids_NK.shape[1]]
    wide_PF = jax.nn.silu(jax.lax.ragged_dot(x_PD, experts.gate, sizes_E))
    wide_PF = wide_PF * jax.lax.ragged_dot(x_PD, experts.up, sizes_E)
    y_PD = jax.lax.ragged_dot(wide_PF, experts.down, sizes_E)[jnp.argsort(order_P)]
    return jnp.einsum("NKD,NK->ND", y_PD.reshape(*ids_NK.shape, -1), weights_NK).astype(x_ND.dtype)


def main() -> None:
    options = parse_options()
    x, ids, weights, experts = draw_inputs(options)
    sides = {"ragged_dot": ragged_mixture}
    for rows in options.block_rows:
        sides[f"blocks_{rows}"] = partial(expert_mixture, activation=jax.nn.silu, block_rows=rows)
    figures: dict[str, Any] = {}
    for what, make in (("forward", jax.jit), ("gradient", gradient_of)):
        functions = {name: make(side) for name, side in sides.items()}
        for name, milliseconds in alternate(functions, (x, ids, weights, experts), options.rounds).items():
            figures[f"{what}_{name}_ms"] = {"min": min(milliseconds), "median": statistics.median(milliseconds)}
    print(json.dumps({"name": "experts", "device": jax.devices()[0].device_kind, "jax": jax.__version__,
                      "shape": vars(options), "figures": figures}))  # fmt: skip


def parse_options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for name, default in (("tokens", 1024), ("experts", 8), ("per-token", 2), ("hidden", 256), ("width", 256),
                          ("rounds", 7)):  # fmt: skip
        parser.add_argument(f"--{name}", type=int, default=default)
    parser.add_argument("--dtype", choices=("float32", "bfloat16"), default="float32")
    parser.add_argument("--block-rows", type=int, nargs="+", default=[128, 256])
    return parser.parse_args()


def draw_inputs(options: argparse.Namespace) -> tuple[Any, ...]:
    """Each token goes to other experts, drawn evenly."""
    rng = np.random.default_rng(0)

    def draw(*shape: int) -> jax.Array:
        return jnp.asarray(0.05 * rng.standard_normal(shape, np.float32), options.dtype)

    experts, hidden, width = options.experts, options.hidden, options.width
    ids = np.stack([rng.permutation(experts)[: options.per_token] for _ in range(options.tokens)])
    weights = ExpertWeights(draw(experts, hidden, width), draw(experts, hidden, width), draw(experts, width, hidden))
    shares = jnp.asarray(rng.random(ids.shape, np.float32))
    return draw(options.tokens, hidden), jnp.asarray(ids, jnp.int32), shares, weights


def gradient_of(mixture: Callable[..., jax.Array]) -> Callable[..., Any]:
    def loss(x, ids, weights, experts):
        return jnp.square(mixture(x, ids, weights, experts).astype(jnp.float32)).sum()

    return jax.jit(jax.grad(loss, argnums=(0, 2, 3)))


def alternate(functions: dict[str, Callable[..., Any]], inputs: Any, rounds: int) -> dict[str, list[float]]:
    """Milliseconds of each call; the first round compiles and isn't counted."""
    milliseconds: dict[str, list[float]] = {name: [] for name in functions}
    for number in range(rounds + 1):
        for name, function in functions.items():
            started = time.perf_counter()
            jax.block_until_ready(function(*inputs))
            if number:
                milliseconds[name].append(round(1e3 * (time.perf_counter() - started), 2))
    return milliseconds


if __name__ == "__main__":
    main()
