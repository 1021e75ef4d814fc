"""Which device a DeviceJudge works on: a set of cores, or one GPU and the cores that feed it."""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import Literal

from sandbox.config import JudgeConfig


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceSpec:
    """One profiler device of this machine."""

    kind: Literal["cpu", "cuda"] = "cpu"
    cores: list[int]
    visible: str = ""
    """The entry of CUDA_VISIBLE_DEVICES that names the GPU: a number, a GPU-… or a MIG-… identifier."""


def device_spec(config: JudgeConfig, index: int, *, gpu: int | None = None) -> DeviceSpec:
    """Device `index` of this machine. Raises ValueError where the machine has too few cores or GPUs.

    `gpu`: its place in CUDA_VISIBLE_DEVICES, where that is not `index` because each process is shown one GPU alone.
    """
    cores = device_cores(config, index)
    if config.device == "cpu":
        return DeviceSpec(cores=cores)
    return DeviceSpec(kind="cuda", cores=cores, visible=_visible_gpu(config, index if gpu is None else gpu))


def device_cores(config: JudgeConfig, index: int) -> list[int]:
    """The cores of device `index`. Raises ValueError where the machine has too few."""
    available = sorted(os.sched_getaffinity(0))
    needed = (index + 1) * config.cores_per_device
    if needed > len(available):
        raise ValueError(
            f"judge.num_devices={config.num_devices} of judge.cores_per_device={config.cores_per_device} "
            f"need {needed} cores, this machine has {len(available)}; lower one of the two"
        )
    return available[needed - config.cores_per_device : needed]


def _visible_gpu(config: JudgeConfig, index: int) -> str:
    """The GPU's name as whoever started us sees it; MIG instances and MPS stay as they were set up."""
    allowed = os.environ.get("CUDA_VISIBLE_DEVICES")
    if allowed is None:
        return str(index)
    names = [name.strip() for name in allowed.split(",") if name.strip()]
    if index >= len(names):
        raise ValueError(
            f"judge.num_devices={config.num_devices}: CUDA_VISIBLE_DEVICES={allowed} shows {len(names)} GPUs; lower "
            "judge.num_devices or make more visible"
        )
    return names[index]
