"""Can this device run that artifact? Asked before a judgement, so that a wrong setting is never a candidate's fault."""

from __future__ import annotations

from typing import Any

from sandbox.judge.spec import DeviceSpec
from sandbox.skill import load_skill
from sandbox.toolchains.cuda_toolkit import arch_of, cudart_major, runs_on
from sandbox.types import Artifact, DeviceError


def check_fits(skill: str, artifact: Artifact, spec: DeviceSpec, gpu: dict[str, Any]) -> None:
    """`gpu` is what Placement.start said, {} on a CPU.

    Raises ValueError for a skill of another kind of device, DeviceError for code of another GPU or CUDA release.
    """
    wanted = load_skill(skill).device
    if wanted != spec.kind:
        raise ValueError(
            f"judge.device={spec.kind} cannot run candidates of skill {skill}; set judge.device to {wanted}"
        )
    if not gpu or not artifact.shared_object:
        return
    major, minor = gpu["capability"]
    if not runs_on(artifact.arch, major, minor):
        raise DeviceError(
            f"kernels were compiled for {artifact.arch}, the profiler device {gpu['name']} is {arch_of(major, minor)}; "
            "set compile.cuda_arch to that"
        )
    needed = cudart_major(artifact.shared_object)
    if needed is not None and needed != gpu["cuda"].partition(".")[0]:
        raise DeviceError(
            f"kernels were compiled with CUDA {needed}, torch on the profiler device has CUDA {gpu['cuda']}; compile "
            "with an nvcc of the same major release"
        )
