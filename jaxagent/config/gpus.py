"""Which part of a run computes on which GPU: shares of GPUs in the config, and a plan that puts them together."""

from __future__ import annotations

from dataclasses import dataclass, field

from pydantic import Field, field_validator

from sandbox.config import Config

_SLACK = 1e-6  # three shares of a third are one GPU


class GpuConfig(Config):
    """What Ray reserves for each part: a share of one GPU, or a whole number of them. A share is a place, not a limit:
    memory is limited by learner_memory and engine.kv_cache_gib."""

    learner: float = Field(default=0.0, ge=0)
    """0: the learner computes on CPUs."""
    engine: float = Field(default=0.0, ge=0, le=1)
    """Of each engine; 0: vLLM runs on CPUs."""
    profiler: float = Field(default=1.0, gt=0, le=1)
    """Of each profiler device, where judge.device is cuda. Candidates are timed one at a time on a device, and what
    else is on its GPU stands still meanwhile (judge.quiet)."""
    learner_memory: float | None = Field(default=None, gt=0, le=1)
    """Part of the GPU's memory, of what is free when it starts, that JAX takes at the start; None: it takes memory as
    it needs it, at most 0.75, in pieces that a large step may not fit into though they would do together."""
    wait_s: float = Field(default=600.0, gt=0)
    """How long a run waits for GPUs that others of its Ray cluster have."""

    @field_validator("learner")
    @classmethod
    def _whole(cls, value: float) -> float:
        if value > 1 and value != int(value):
            raise ValueError(f"{value} is neither a share of one GPU nor a whole number of them")
        return value


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuPlan:
    """Bundles, each of whole GPUs of one host, and the bundle of each part."""

    bundles: list[int] = field(default_factory=list)
    learner: int | None = None
    engines: list[int] = field(default_factory=list)
    profilers: list[int] = field(default_factory=list)


def plan_gpus(
    gpus: GpuConfig, *, with_learner: bool, num_engines: int, num_profilers: int, weight_transfer: str
) -> GpuPlan:
    """First fit: the learner, engines, then profilers. With ipc all engines share the learner's GPU, with nccl none.

    Raises ValueError, naming the keys, for shares that contradict weight_transfer.
    """
    free: list[float] = []
    sizes: list[int] = []

    def add(share: float) -> int:
        sizes.append(max(1, int(share)))
        free.append(sizes[-1] - share)
        return len(free) - 1

    def fit(share: float, *, among: list[int]) -> int:
        found = next((index for index in among if free[index] + _SLACK >= share), None)
        if found is None:
            return add(share)
        free[found] -= share
        return found

    if with_learner and weight_transfer == "ipc":
        _check_one_gpu(gpus, num_engines)
    learner = add(gpus.learner) if with_learner and gpus.learner else None
    engines: list[int] = []
    for _ in range(num_engines if gpus.engine else 0):
        apart = learner if weight_transfer == "nccl" else None  # NCCL refuses two ranks on one GPU
        engines.append(fit(gpus.engine, among=[index for index in range(len(free)) if index != apart]))
    profilers = [fit(gpus.profiler, among=list(range(len(free)))) for _ in range(num_profilers)]
    return GpuPlan(bundles=sizes, learner=learner, engines=engines, profilers=profilers)


def _check_one_gpu(gpus: GpuConfig, num_engines: int) -> None:
    if not (gpus.learner and gpus.engine):
        raise ValueError(
            f"gpus.learner={gpus.learner:g}, gpus.engine={gpus.engine:g}: engine.weight_transfer=ipc needs the learner "
            f"and every engine on one GPU; give both a share, or set engine.weight_transfer to shared_memory"
        )
    needed = gpus.learner + num_engines * gpus.engine
    if needed > 1 + _SLACK:
        raise ValueError(
            f"gpus.learner={gpus.learner:g} and gpus.engine={gpus.engine:g} for {num_engines} engine(s) are {needed:g} "
            f"of one GPU: engine.weight_transfer=ipc needs them together; lower the shares to 1 in all, or set "
            f"engine.weight_transfer to nccl"
        )
