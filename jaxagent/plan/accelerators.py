"""Accelerators that a plan can be made for, by their makers' data sheets; all rates are per device."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Accelerator:
    """One device, and the wires that reach others."""

    name: str
    memory_gib: float
    bf16_tflops: float
    """Dense matrix products. Those of float32 run at half of it, as JAX rounds their inputs to TF32 by default."""
    link_gb_per_s: float
    """To devices of the same host, one way."""
    network_gb_per_s: float
    """To other hosts, one way, with one 400 Gb/s port a device (200 Gb/s for the A100)."""
    per_host: int = 8


ACCELERATORS = {
    accelerator.name: accelerator
    for accelerator in (
        Accelerator(name="a100", memory_gib=79.0, bf16_tflops=312, link_gb_per_s=300, network_gb_per_s=25),
        Accelerator(name="h100", memory_gib=79.0, bf16_tflops=989, link_gb_per_s=450, network_gb_per_s=50),
        Accelerator(name="h200", memory_gib=139.0, bf16_tflops=989, link_gb_per_s=450, network_gb_per_s=50),
        Accelerator(name="h20", memory_gib=95.0, bf16_tflops=148, link_gb_per_s=450, network_gb_per_s=50),
        Accelerator(name="b200", memory_gib=179.0, bf16_tflops=2250, link_gb_per_s=900, network_gb_per_s=50),
    )
}
