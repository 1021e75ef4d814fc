"""Settings of how a candidate task is run to see what it does."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from sandbox.config import Config


class ProbeConfig(Config):
    """A device runs one task at a time; nothing else of ours runs on its cores while it is timed."""

    device: Literal["cpu", "cuda"] = "cpu"
    num_devices: int = Field(default=1, gt=0)
    """Devices for eager runs and their times: sets of cores, or GPUs of CUDA_VISIBLE_DEVICES."""
    cores_per_device: int = Field(default=2, gt=0)
    num_compilers: int = Field(default=2, gt=0)
    """Compilations at a time, each on one core; they work while nothing is timed."""
    timeout_s: float = Field(default=30.0, gt=0)
    """Of building, examining and timing, each: a task that takes longer hangs."""
    compile_timeout_s: float = Field(default=240.0, gt=0)
    slow_ms: float = Field(default=1000.0, gt=0)
    """A forward pass that takes longer is not examined further: it is too slow."""
    warmup_ms: float = Field(default=150.0, ge=0)
    timing_ms: float = Field(default=400.0, gt=0)
    memory_mb: int = Field(default=4096, gt=0)
    """Memory that a task may take beyond torch itself."""
