"""The learner's side of packed weights: buffers on its device, and how engines get at them."""

from __future__ import annotations

import itertools
import uuid
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import torch

from rollout import broadcast, cuda_ipc
from rollout.packages import BROADCAST, PackedPackage, PackedPart, PackedTensor, Probe, WeightsError
from rollout.packed import checksum, lay_out, views

Named = Iterable[tuple[str, torch.Tensor]]
_NUM_BUFFERS = 2  # an engine that is started again may need the last version while the next one is written


@dataclass
class _Buffer:
    """One version's bytes: what changes with each, then what does not."""

    data: torch.Tensor
    source: dict[str, Any]
    version: int = -1
    has_unchanging: bool = False


class PackedWriter:
    """Packs versions into buffers of a device, two in turns; they live as long as the writer.

    A package is good until the version after the next is written. With `host`, engines get the bytes by `send`; else
    they look at the buffers themselves, on the same GPU. `write` and `send` may run in different threads.
    """

    def __init__(
        self, device: torch.device, *, dtype: str | None = None, host: str | None = None, timeout_s: float = 60.0
    ) -> None:
        """`dtype`: what tensors are converted to; None: as they are. `host`: address of this process for engines."""
        if host is None and device.type != "cuda":
            raise WeightsError(f"memory of {device} cannot be shown to another process: CUDA alone can")
        self._device, self._dtype, self._timeout_s = device, dtype, timeout_s
        self._base, self._layout = uuid.uuid4().hex, list[list[PackedTensor]]()
        self._buffers: list[_Buffer] = []
        self._turns = itertools.cycle(range(_NUM_BUFFERS))
        self._groups: dict[str, broadcast.WeightsGroup] = {}
        self._host = host
        self._store = broadcast.host_store(host, timeout_s=timeout_s) if host is not None else None

    def write(
        self,
        tensors: Callable[[], Named],
        *,
        version: int,
        unchanging: Callable[[], Named] = lambda: (),
        probe: Probe | None = None,
    ) -> PackedPackage:
        """Packs (name, tensor) pairs on the writer's device; `unchanging` are the same in every version.

        Raises WeightsError where names or shapes are not those of the first version.
        """
        if not self._buffers:
            self._allocate(tensors(), unchanging())
        buffer = self._buffers[next(self._turns)]
        buffer.version = -1  # whoever still reads the old version finds another checksum
        changed_bytes = self._part_bytes[0]
        _fill(buffer.data[:changed_bytes], self._layout[0], tensors())
        if len(self._layout) > 1 and not buffer.has_unchanging:
            _fill(buffer.data[changed_bytes:], self._layout[1], unchanging())
            buffer.has_unchanging = True
        offsets = [0, changed_bytes]
        parts = [
            PackedPart(offset=at, num_bytes=size, tensors=tensors, checksum=checksum(buffer.data[at : at + size]))
            for at, size, tensors in zip(offsets, self._part_bytes, self._layout, strict=False)
        ]
        if self._device.type == "cuda":
            torch.cuda.synchronize(self._device)
        buffer.version = version
        base = self._base if len(parts) > 1 else ""
        return PackedPackage(version=version, parts=parts, source=dict(buffer.source), base=base, probe=probe)

    def send(self, package: PackedPackage) -> int:
        """Takes part in the one exchange that `package` was addressed to (addressed_to); returns how many parts went.

        Raises WeightsError where the engine does not come within the time limit, or the version is here no more.
        """
        group = self._group(package.source["join"])
        buffer = next((buffer for buffer in self._buffers if buffer.version == package.version), None)
        if buffer is None:
            held = [buffer.version for buffer in self._buffers]
            raise WeightsError(f"version {package.version} cannot be sent: the learner holds {held}")
        return group.send(package.source["exchange"], buffer.data, package.parts)

    def close(self) -> None:
        """Leaves every group. The buffers go with the writer."""
        for group in self._groups.values():
            group.close()
        self._groups = {}

    def _allocate(self, tensors: Named, unchanging: Named) -> None:
        layouts = [lay_out(self._described(named)) for named in (tensors, unchanging)]
        self._layout = [placed for placed, _ in layouts if placed]
        self._part_bytes = [size for placed, size in layouts if placed]
        if not layouts[0][0]:
            raise WeightsError("there are no weights to be packed: the iterator of named tensors was empty")
        for _ in range(_NUM_BUFFERS):
            data = torch.zeros(sum(self._part_bytes), dtype=torch.uint8, device=self._device)
            self._buffers.append(_Buffer(data, self._source(data)))

    def _source(self, data: torch.Tensor) -> dict[str, Any]:
        if self._store is None:
            return cuda_ipc.export_buffer(data)
        address = {"host": self._host, "port": self._store.port, "timeout_s": self._timeout_s}
        return {"kind": BROADCAST, "address": address}

    def _described(self, named: Named) -> Iterator[tuple[str, str, tuple[int, ...]]]:
        for name, tensor in named:
            yield name, self._dtype or str(tensor.dtype).removeprefix("torch."), tuple(tensor.shape)

    def _group(self, join: dict[str, Any]) -> broadcast.WeightsGroup:
        name = join["name"]
        if name not in self._groups:
            engine = name.rpartition("-")[0]
            for old in [other for other in self._groups if other.rpartition("-")[0] == engine]:
                self._groups.pop(old).close()  # of the engine's last start, which is over
            self._groups[name] = broadcast.WeightsGroup(rank=0, device=self._device, **join)
        return self._groups[name]


def _fill(buffer: torch.Tensor, layout: list[PackedTensor], named: Named) -> None:
    places = dict(views(buffer, layout))
    for name, tensor in named:
        place = places.pop(name, None)
        if place is None or place.shape != tensor.shape:
            raise WeightsError(
                f"{name} of shape {tuple(tensor.shape)} was not among the first version's weights, came twice, or had "
                f"another shape: {None if place is None else tuple(place.shape)}"
            )
        place.copy_(tensor)
    if places:
        raise WeightsError(f"{len(places)} weights of the first version are missing now, such as {min(places)}")
