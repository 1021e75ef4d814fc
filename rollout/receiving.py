"""How vLLM's worker comes by a version's bytes, from shared memory, another process's GPU memory or a process group.

Whichever way: every byte is checked before the first one is loaded, and nothing is unpickled.
"""

from __future__ import annotations

import hashlib
import mmap
import time
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Protocol

import safetensors
import torch

from rollout import broadcast, cuda_ipc
from rollout.packages import CUDA_IPC, REJECTED, PackedPart, WeightsError
from rollout.packed import checksum, views

_OPEN_BUFFERS = 4
"""Of the learner's, in which it takes turns."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Received:
    """Checked weights; `num_bytes` are those in `tensors`."""

    tensors: Iterator[tuple[str, torch.Tensor]]
    checksum: str
    num_bytes: int
    receive_s: float
    check_s: float


class Announced(Protocol):
    """What rollout.weight_transfer.UpdateInfo holds."""

    version: int
    files: list[dict[str, Any]]
    parts: list[dict[str, Any]]
    source: dict[str, Any]


class Receiver:
    """Of one worker; `rank` among the workers of its engine."""

    def __init__(self, device: torch.device, *, rank: int) -> None:
        self._device, self._rank = device, rank
        self._opened: dict[tuple[Any, ...], torch.Tensor] = {}
        self._group: broadcast.WeightsGroup | None = None
        self._buffer: torch.Tensor | None = None

    def join(self, group: Mapping[str, Any]) -> None:
        """Leaves the group that there was. Raises WeightsError where the learner does not come."""
        self.close()
        self._group = broadcast.WeightsGroup(rank=self._rank + 1, device=self._device, **group)

    def receive(self, announced: Announced, *, only_changed: bool) -> Received:
        """`only_changed`: what else there is has been loaded before. Raises WeightsError."""
        if announced.files:
            return _from_files(announced, only_changed=only_changed)
        began = time.perf_counter()
        parts = [PackedPart.of(plain) for plain in announced.parts]
        wanted = 1 if only_changed else len(parts)
        if announced.source["kind"] == CUDA_IPC:
            buffer = self._open(announced.source)
        else:
            buffer = self._broadcast(announced.source, parts, wanted)
        received_s = time.perf_counter()
        sums = [_check_part(announced.version, buffer, part) for part in parts[:wanted]]
        return Received(
            tensors=_packed_tensors(buffer, parts[:wanted]),
            checksum="-".join(sums),
            num_bytes=sum(part.num_bytes for part in parts[:wanted]),
            receive_s=received_s - began,
            check_s=time.perf_counter() - received_s,
        )

    def close(self) -> None:
        """Leaves the group, if there is one."""
        if self._group is not None:
            self._group.close()
            self._group = None

    def _open(self, source: dict[str, Any]) -> torch.Tensor:
        """Mapped once for each of the learner's buffers: that takes longer than reading it."""
        key = source["gpu"], source["storage_handle"], source["storage_offset_bytes"], source["offset"]
        if key not in self._opened:
            try:
                self._opened[key] = cuda_ipc.open_buffer(source, self._device)
            except WeightsError as error:
                raise WeightsError(f"{REJECTED}: {error}") from error
            except RuntimeError as error:
                raise WeightsError(f"{REJECTED}: the learner's GPU memory cannot be opened: {error}") from error
            for old in list(self._opened)[:-_OPEN_BUFFERS]:
                del self._opened[old]
        return self._opened[key]

    def _broadcast(self, source: dict[str, Any], parts: list[PackedPart], wanted: int) -> torch.Tensor:
        if self._group is None or self._group.name != source["group"]:
            raise WeightsError(f"{REJECTED}: this engine is not in the group {source['group']!r}; it has to join first")
        needed = parts[-1].offset + parts[-1].num_bytes
        if self._buffer is None or self._buffer.numel() != needed:
            self._buffer = torch.empty(needed, dtype=torch.uint8, device=self._device)
        self._group.receive(source["exchange"], self._buffer, parts, wanted=wanted)
        return self._buffer


def _check_part(version: int, buffer: torch.Tensor, part: PackedPart) -> str:
    received = checksum(buffer[part.offset : part.offset + part.num_bytes])
    if received != part.checksum:
        raise WeightsError(
            f"{REJECTED}: version {version}: {part.num_bytes} packed bytes have checksum {received}, announced was "
            f"{part.checksum}"
        )
    return received


def _packed_tensors(buffer: torch.Tensor, parts: Iterable[PackedPart]) -> Iterator[tuple[str, torch.Tensor]]:
    for part in parts:
        yield from views(buffer[part.offset : part.offset + part.num_bytes], part.tensors)


def _from_files(announced: Announced, *, only_changed: bool) -> Received:
    files = [file for file in announced.files if file["changed"] or not only_changed]
    began = time.perf_counter()
    for file in files:
        _check_file(announced.version, path=file["path"], sha256=file["sha256"], num_bytes=file["num_bytes"])
    return Received(
        tensors=_file_tensors(file["path"] for file in files),
        checksum=hashlib.sha256("".join(file["sha256"] for file in files).encode()).hexdigest(),
        num_bytes=sum(file["num_bytes"] for file in files),
        receive_s=0.0,
        check_s=time.perf_counter() - began,
    )


def _check_file(version: int, *, path: str, sha256: str, num_bytes: int) -> None:
    try:
        with open(path, "rb") as stream, mmap.mmap(stream.fileno(), 0, access=mmap.ACCESS_READ) as view:
            received_bytes, received = len(view), hashlib.sha256(view).hexdigest()
    except (OSError, ValueError) as error:
        raise WeightsError(f"{REJECTED}: version {version}: {path} cannot be read ({error})") from error
    if (received_bytes, received) != (num_bytes, sha256):
        raise WeightsError(
            f"{REJECTED}: version {version}: {path} holds {received_bytes} bytes with sha256 {received}, announced "
            f"were {num_bytes} bytes with sha256 {sha256}"
        )


def _file_tensors(paths: Iterable[str]) -> Iterator[tuple[str, torch.Tensor]]:
    for path in paths:
        with safetensors.safe_open(path, framework="pt") as tensors:
            for name in tensors.keys():  # noqa: SIM118 (not a mapping)
                yield name, tensors.get_tensor(name)
