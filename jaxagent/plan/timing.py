"""How long an update takes on a named accelerator, from its operations and its traffic."""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping
from dataclasses import dataclass

from jaxagent.plan.accelerators import Accelerator
from jaxagent.plan.collectives import Traffic
from jaxagent.plan.flops import Flops


@dataclass(frozen=True, slots=True, kw_only=True)
class StepTime:
    """One step over all its microbatches, on every device alike."""

    flops: Flops
    """Of all devices together."""
    compute_s: float
    traffic_s: dict[str, float]
    """By mesh axes."""

    @property
    def seconds(self) -> float:
        """With no traffic hidden behind computation."""
        return self.compute_s + sum(self.traffic_s.values())


def step_time(
    flops: Flops,
    traffic: Traffic,
    *,
    num_microbatches: int,
    mesh_shape: Mapping[str, int],
    accelerator: Accelerator,
    dtype: str,
    efficiency: float,
) -> StepTime:
    """`traffic` is that of one microbatch; `efficiency` the share of the peak rate that computation reaches."""
    rate = accelerator.bf16_tflops * 1e12 * efficiency * (1.0 if dtype == "bfloat16" else 0.5)
    devices = math.prod(mesh_shape.values())
    seconds = {}
    for axes, kinds in traffic.items():
        is_near = within_a_host(axes.split("+"), mesh_shape, accelerator.per_host)
        gb_per_s = accelerator.link_gb_per_s if is_near else accelerator.network_gb_per_s
        seconds[axes] = num_microbatches * sum(kinds.values()) / (gb_per_s * 1e9)
    return StepTime(flops=flops, compute_s=flops.hardware / devices / rate, traffic_s=seconds)


def within_a_host(axes: list[str], mesh_shape: Mapping[str, int], per_host: int) -> bool:
    """Whether the devices of a group along these axes share a host; devices are numbered with the last axis fastest."""
    sizes = list(mesh_shape.values())
    strides = [math.prod(sizes[place + 1 :]) for place in range(len(sizes))]
    places = [range(size) if axis in axes else range(1) for axis, size in mesh_shape.items()]
    ids = [sum(map(math.prod, zip(point, strides, strict=True))) for point in itertools.product(*places)]
    return max(ids) < per_host
