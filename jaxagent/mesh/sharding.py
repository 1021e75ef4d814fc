"""The mesh, and where each array lies on it."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import jax
import numpy as np
from flax import nnx
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from jaxagent.config.learner import MeshConfig
from jaxagent.mesh.devices import AXES, check_count, check_mesh, num_devices

BATCH_AXES = ("data", "fsdp", "expert")

LOGICAL_RULES: Mapping[str, str | None] = {
    "vocab": "tensor",
    "embed": "fsdp",
    "heads": "tensor",
    "kv_heads": "tensor",
    "head_dim": None,
    "mlp": "tensor",
    "expert": "expert",
    "router": None,
    "rank": None,
    "layers": None,
    "value": None,
}
"""What a parameter's axis is called -> the mesh axis that splits it. None: every device holds it whole."""


def make_mesh(cfg: MeshConfig, *, rows_per_microbatch: int, devices: Sequence[Any] | None = None) -> Mesh:
    """A mesh over the first devices, as many as the config's axes need. Raises ConfigError on what can't work."""
    check_mesh(cfg, rows_per_microbatch=rows_per_microbatch)
    devices = jax.devices() if devices is None else devices
    check_count(cfg, found=len(devices), platform=devices[0].platform)
    sizes = [getattr(cfg, axis) for axis in AXES]
    return Mesh(np.asarray(devices[: num_devices(cfg)]).reshape(sizes), AXES)


def param_shardings(params: Any, mesh: Mesh) -> Any:
    """A NamedSharding for each parameter, from the names that the model gives to its axes.

    An axis whose length the mesh axis doesn't divide stays whole, and so does a second axis that would use the same
    mesh axis. Variables without names: fsdp splits the longest axis that it divides.
    """

    def of(variable: Any) -> Any:
        value, names = variable.get_value(), axis_names(variable)
        spec = _named_spec(names, value.shape, mesh) if names else _longest_axis_spec(value.shape, mesh)
        return variable.replace(NamedSharding(mesh, spec))

    return jax.tree.map(of, params, is_leaf=lambda leaf: isinstance(leaf, nnx.Variable))


def axis_names(variable: nnx.Variable) -> tuple[str | None, ...] | None:
    return variable.get_metadata().get("logical_axes")


def batch_sharding(mesh: Mesh) -> NamedSharding:
    """[M, B, T]: rows are shared out over data, fsdp and expert, and their tokens over context."""
    return NamedSharding(mesh, PartitionSpec(None, BATCH_AXES, "context"))


def keep_with_rows(x_BTD: jax.Array) -> jax.Array:
    """Hidden states lie where their tokens lie, and whole: XLA might split them as it finds the parameters split."""
    mesh = jax.sharding.get_abstract_mesh()
    if mesh.empty or mesh.size == 1:
        return x_BTD
    return jax.lax.with_sharding_constraint(x_BTD, PartitionSpec(BATCH_AXES, "context"))


def num_token_shards() -> int:
    """Devices that hold tokens of their own, on the mesh of jax.set_mesh; 1 without one."""
    mesh = jax.sharding.get_abstract_mesh()
    return 1 if mesh.empty else math.prod(mesh.shape[axis] for axis in (*BATCH_AXES, "context"))


def _named_spec(names: Sequence[str | None], shape: tuple[int, ...], mesh: Mesh) -> PartitionSpec:
    if len(names) != len(shape):
        raise ValueError(f"axis names {tuple(names)} don't fit a parameter of shape {shape}")
    spec: list[str | None] = []
    for name, length in zip(names, shape, strict=True):
        if name is not None and name not in LOGICAL_RULES:
            raise ValueError(f"parameter axis {name!r} has no rule; known axes: {sorted(LOGICAL_RULES)}")
        axis = LOGICAL_RULES[name] if name is not None else None
        usable = axis is not None and axis not in spec and length % mesh.shape[axis] == 0
        spec.append(axis if usable else None)
    return PartitionSpec(*spec)


def _longest_axis_spec(shape: tuple[int, ...], mesh: Mesh) -> PartitionSpec:
    size = mesh.shape["fsdp"]
    candidates = [index for index, length in enumerate(shape) if length % size == 0 and length >= size]
    if len(shape) < 2 or not candidates:
        return PartitionSpec()
    longest = max(candidates, key=lambda index: shape[index])
    return PartitionSpec(*("fsdp" if index == longest else None for index in range(len(shape))))
