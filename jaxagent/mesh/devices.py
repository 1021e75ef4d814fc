"""How many devices a mesh needs, what no host can run, and virtual CPU devices where a host has no others.

JAX is imported where it is needed: the driver checks a config with this and touches no device.
"""

from __future__ import annotations

import math
import os

from jaxagent.config.learner import MeshConfig
from jaxagent.config.load import ConfigError

AXES = ("data", "fsdp", "tensor", "expert", "context")
_COUNT_FLAG = "xla_force_host_platform_device_count"
_PATIENCE_FLAG = "xla_cpu_collective_call_terminate_timeout_seconds"
_PATIENCE_S = 24 * 3600


def num_devices(cfg: MeshConfig) -> int:
    return math.prod(getattr(cfg, axis) for axis in AXES)


def token_shards(cfg: MeshConfig) -> int:
    """Devices that hold tokens of their own; those of the other axes share them."""
    return cfg.data * cfg.fsdp * cfg.expert * cfg.context


def shown(cfg: MeshConfig) -> str:
    """The axes that split something, for messages: `data=2, fsdp=4`."""
    return ", ".join(f"{axis}={getattr(cfg, axis)}" for axis in AXES if getattr(cfg, axis) > 1) or "one device"


def check_mesh(cfg: MeshConfig, *, rows_per_microbatch: int) -> None:
    """Raises ConfigError for a mesh that no host can run."""
    split = cfg.data * cfg.fsdp * cfg.expert
    if rows_per_microbatch % split:
        raise ConfigError(
            f"learner.rows_per_microbatch={rows_per_microbatch} must be a multiple of mesh.data x "
            f"mesh.fsdp x mesh.expert = {split}: these axes share a microbatch's rows; set it to {split} or more"
        )


def check_count(cfg: MeshConfig, *, found: int, platform: str) -> None:
    """Raises ConfigError where JAX sees fewer devices than the mesh needs; `platform` as jax.Device names it."""
    needed = num_devices(cfg)
    if needed <= found:
        return
    if platform == "cpu":
        next_step = (
            "lower an axis; or, so that a CPU host gets as many virtual devices as the mesh needs, leave "
            f"XLA_FLAGS=--{_COUNT_FLAG} and JAX_NUM_CPU_DEVICES unset and compute nothing with JAX in this process "
            "before the learner starts"
        )
    else:
        next_step = (
            f"lower an axis, use a host with {needed}, or see whether CUDA_VISIBLE_DEVICES hides some; virtual devices "
            "exist on CPU hosts alone (JAX_PLATFORMS=cpu)"
        )
    raise ConfigError(
        f"learner.mesh ({shown(cfg)}) needs {needed} devices and JAX sees {found} ({platform}); {next_step}"
    )


def provide_devices(cfg: MeshConfig) -> None:
    """Asks JAX for as many virtual CPU devices as the mesh needs. Call it before this process computes with JAX.

    Accelerators are not affected: the setting counts CPU devices only. A count that the user has set (XLA_FLAGS,
    JAX_NUM_CPU_DEVICES) stays, and so do the devices of a process whose JAX runs already: `check_count` then says
    whether they suffice.
    """
    import jax

    needed, flags = num_devices(cfg), os.environ.get("XLA_FLAGS", "")
    if needed == 1 or _COUNT_FLAG in flags or "JAX_NUM_CPU_DEVICES" in os.environ:
        return
    try:
        jax.config.update("jax_num_cpu_devices", needed)
    except RuntimeError:  # JAX runs already
        return
    if _PATIENCE_FLAG not in flags:
        # XLA ends a process in which one device has waited a minute for another, by the wall clock: a learner that
        # stands still again and again while kernels are timed could get there.
        os.environ["XLA_FLAGS"] = f"{flags} --{_PATIENCE_FLAG}={_PATIENCE_S}".strip()
