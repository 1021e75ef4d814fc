"""The actor's weights on their way to the engines, in the way that engine.weight_transfer names."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Protocol

import jax

from jaxagent.config.learner import LoraConfig
from jaxagent.config.run import RunConfig
from jaxagent.models.decoder import Decoder
from jaxagent.models.params import Names, device_weights, named_weights
from rollout.packages import Package, PackedPackage, Probe, WeightsError
from rollout.weights import WeightsWriter

_FUSED = ({"q_proj", "k_proj", "v_proj"}, {"gate_proj", "up_proj"})
"""Matrices that engines keep as one: where one of them changes, all are loaded."""


class Outgoing(Protocol):
    def write(self, actor: Decoder, *, version: int, probe: Probe | None) -> Package:
        """The actor's weights where engines can get at them."""
        ...

    def send(self, package: PackedPackage) -> None:
        """Takes part in one exchange with one engine; from any thread."""
        ...

    def close(self) -> None: ...


def make_outgoing(config: RunConfig, *, host: str) -> Outgoing:
    """`host`: address of this machine for engines on others."""
    if config.engine.weight_transfer == "shared_memory":
        return SharedMemoryWeights(config.learner.lora)
    return DeviceWeights(config, host=host)


class SharedMemoryWeights:
    """Files for engines on this machine."""

    def __init__(self, lora: LoraConfig | None) -> None:
        self._writer = WeightsWriter()
        self._changing, self._unchanging = names_that_change(lora)

    def write(self, actor: Decoder, *, version: int, probe: Probe | None) -> Package:
        return self._writer.write(
            named_weights(actor, self._changing),
            version=version,
            unchanging=named_weights(actor, self._unchanging),
            probe=probe,
        )

    def send(self, package: PackedPackage) -> None:
        raise WeightsError(f"version {package.version} lies in shared memory, where engines find it: nothing is sent")

    def close(self) -> None:
        self._writer.close()


class DeviceWeights:
    """Buffers on this process's first device, shown to engines on the same GPU or broadcast to others."""

    def __init__(self, config: RunConfig, *, host: str) -> None:
        import torch

        from rollout.packed_writer import PackedWriter

        self._source = jax.local_devices()[0]
        device = torch.device("cuda", 0) if self._source.platform == "gpu" else torch.device("cpu")
        dtype = None if config.engine.dtype == "auto" else config.engine.dtype
        self._writer = PackedWriter(
            device,
            dtype=dtype,
            host=host if config.engine.weight_transfer == "nccl" else None,
            timeout_s=config.engine.publish_timeout_s,
        )
        self._changing, self._unchanging = names_that_change(config.learner.lora)

    def write(self, actor: Decoder, *, version: int, probe: Probe | None) -> Package:
        return self._writer.write(
            lambda: self._tensors(actor, self._changing),
            version=version,
            unchanging=lambda: self._tensors(actor, self._unchanging),
            probe=probe,
        )

    def send(self, package: PackedPackage) -> None:
        self._writer.send(package)

    def close(self) -> None:
        self._writer.close()

    def _tensors(self, actor: Decoder, wanted: Names) -> Iterator[tuple[str, Any]]:
        """JAX's arrays as torch sees them, in the same memory."""
        import torch

        for name, array in device_weights(actor, self._source, wanted):
            yield name, torch.from_dlpack(jax.block_until_ready(array))
            if self._source.platform == "gpu":
                # JAX reuses an array's memory as soon as it is gone here, and knows nothing of torch's copy of it.
                torch.cuda.synchronize()


def names_that_change(lora: LoraConfig | None) -> tuple[Names, Names]:
    """Stored names of what training changes, and of the rest, which is empty where everything is trained."""
    if lora is None:
        return (lambda _: True), (lambda _: False)
    targets: set[str] = set(lora.targets)
    for fused in _FUSED:
        if targets & fused:
            targets |= fused

    def changes(name: str) -> bool:
        return not targets.isdisjoint(name.split("."))

    return changes, (lambda name: not changes(name))
