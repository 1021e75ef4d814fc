"""Settings of the sandbox: where agents' shells run, how candidates are compiled, judged and timed."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

from pydantic import BaseModel, ConfigDict, Field


class Config(BaseModel):
    """Base of every settings class of the project: frozen, and unknown keys are errors."""

    model_config = ConfigDict(frozen=True, extra="forbid")


class SandboxConfig(Config):
    """An agent's shell."""

    backend: Literal["docker", "bubblewrap", "process", "files"] = "docker"
    """`bubblewrap` isolates on hosts without a Docker Engine. `process` runs commands as the current user without
    isolation: for trusted code only. `files` runs none: bash is refused, files can be read and written; for measuring
    the flow apart from shells."""
    image: str = "host-rootfs"
    """`host-rootfs` needs no registry: an empty image with this machine's /usr, /lib and environment read-only. Others
    need backend=docker."""
    warm_containers: int = Field(default=2, ge=0)
    """Docker containers kept started and clean ahead of demand, in every process that opens sandboxes."""
    memory_mb: int = Field(default=2048, gt=0)
    pids: int = Field(default=256, gt=0)
    disk_mb: int = Field(default=512, gt=0)
    command_timeout_s: float = Field(default=60.0, gt=0)
    max_output_bytes: int = Field(default=30_000, gt=0)


class CompileConfig(Config):
    """The compile service."""

    cache_dir: Path = Path("~/.cache/jaxagent/compile")
    cache_max_mb: int = Field(default=2048, gt=0)
    num_workers: int = Field(default=1, gt=0)
    timeout_s: float = Field(default=120.0, gt=0)
    cuda_arch: str | None = Field(default=None, pattern=r"^sm_[0-9]{2,3}[af]?$")
    """What nvcc compiles for, e.g. `sm_90a`: the architecture of the profiler devices. None asks this machine's GPU;
    a compile worker without one needs it stated."""


class JudgeConfig(Config):
    """How a candidate is checked and timed."""

    protocol: Literal["hardened", "paper"] = "hardened"
    device: Literal["cpu", "cuda"] = "cpu"
    """What candidates run and are timed on: `cpu` for skills cpp and cpp_agent, `cuda` for cuda and cuda_agent."""
    num_devices: int = Field(default=1, gt=0)
    """Profiler devices; on CPU a device is a pinned set of cores, otherwise one GPU of CUDA_VISIBLE_DEVICES."""
    cores_per_device: int = Field(default=2, gt=0)
    """Cores, and threads, of one CPU device, or beside one GPU; one device may span every core of a small machine."""
    jobs_per_device: int = Field(default=1, gt=0, le=7)
    """Judgements under way on one device, side by side but for their clocks: while one is timed the others are
    stopped. Each takes the memory of its reference and candidate. More than one needs a judge that runs as root."""
    quiet: bool = True
    """Freeze engine, learner and sandboxes for the length of a timed section: for machines with few cores."""
    num_checks: int = Field(default=5, gt=0)
    """Fresh random inputs compared (paper: 5)."""
    warmup_ms: float = Field(default=60.0, ge=0)
    timed_rounds: int = Field(default=9, ge=3)
    """Interleaved rounds of candidate and eager, of which medians are reported; five where these say enough: on a GPU
    where they agree within 1 %, on a CPU where none of them leaves a doubt about the reward."""
    own_share_floor: float = Field(default=0.05, ge=0, lt=1)
    """On a CPU, the least part of the computing time of ModelNew's calls that has to be outside of torch's libraries,
    where copies are made; by samples, so meant for lazy kernels. 0 refuses nothing; the shares are always reported."""
    timeout_s: float = Field(default=30.0, gt=0)
    """Wall time of one candidate in check and timing together."""
    memory_mb: int = Field(default=4096, gt=0)
    """Memory a candidate's process may take beyond torch itself."""
    max_retries: int = Field(default=2, ge=0)
    """Repeats elsewhere after trouble of ours (device, worker), before the run stops with an error."""
    baseline_dir: Path = Path("~/.cache/jaxagent/baselines")
    """Times of torch eager and torch.compile, by task content and machine."""

    @property
    def num_jobs(self) -> int:
        """Judgements under way on all devices together."""
        return self.num_devices * self.jobs_per_device
