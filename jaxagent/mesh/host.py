"""Arrays of the mesh on the host, whole on every process also where each holds only a part."""

from __future__ import annotations

from typing import Any

import jax


def to_host(tree: Any) -> Any:
    """NumPy arrays. With several processes all of them have to call it, on the same arrays in the same order."""
    if jax.process_count() == 1:
        return jax.device_get(tree)
    return jax.tree.map(_gathered, tree)


def _gathered(leaf: Any) -> Any:
    if not isinstance(leaf, jax.Array) or leaf.is_fully_addressable:
        return jax.device_get(leaf)
    from jax.experimental import multihost_utils

    return multihost_utils.process_allgather(leaf, tiled=True)
