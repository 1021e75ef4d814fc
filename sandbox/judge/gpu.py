"""A worker's tensors on a GPU: copies in and out, and garbage in free memory."""

from __future__ import annotations

import contextlib
import ctypes
import random
from collections.abc import Callable
from typing import Any, Literal

import numpy as np
import torch

from sandbox.judge.cuda_runtime import CudaRuntime
from sandbox.judge.gpu_clock import DeviceClock
from sandbox.judge.placement import address_of, layout_of

_POISON_SHARE, _MAX_POISON_BYTES = 0.25, 2 << 30
_SMALL_BLOCK_BYTES, _SMALL_BLOCKS = 1 << 20, 16
"""The caching allocator serves up to 1 MiB from segments of their own."""
_GARBAGE = (0x7F, 0xFF)
"""3.4e38 and NaN as float32: one survives a minimum, the other a sum."""
_LIMIT_PERSISTING_L2 = 6
_PERSISTING = "changed the device's limit of L2 cache that outlives a flush"
_WORTH_PINNING_BYTES = 1 << 20


class CudaPlacement:
    """The one GPU that CUDA_VISIBLE_DEVICES leaves visible."""

    kind: Literal["cpu", "cuda"] = "cuda"

    def __init__(self) -> None:
        self._slots: dict[int, list[torch.Tensor]] = {}
        self._staged: dict[int, list[torch.Tensor]] = {}
        self._copies: list[torch.Tensor] = []
        self._spare_copies: dict[tuple[torch.dtype, int], list[torch.Tensor]] = {}
        self._poisoned = False

    def start(self) -> dict[str, Any]:
        """Makes the context. float32 is float32 from here on: no TF32 in products or convolutions."""
        torch.cuda.init()
        torch.backends.cuda.matmul.allow_tf32 = False
        torch.backends.cudnn.allow_tf32 = False
        torch.set_float32_matmul_precision("highest")
        self._runtime = CudaRuntime()
        properties = torch.cuda.get_device_properties(0)
        l2_bytes = int(getattr(properties, "L2_cache_size", 0)) or 64 << 20
        self._clock = DeviceClock(self._runtime, l2_bytes)
        self._persisting_bytes = self._runtime.limit(_LIMIT_PERSISTING_L2)
        torch.cuda.synchronize()
        free_bytes, total_bytes = torch.cuda.mem_get_info()
        return {
            "name": properties.name,
            "capability": [properties.major, properties.minor],
            "free_bytes": free_bytes,
            "total_bytes": total_bytes,
            "l2_bytes": l2_bytes,
            "cuda": torch.version.cuda,
        }

    def share(self, memory: Any, num_bytes: int) -> None:
        """Pins them, which makes copies several times as fast; where the system forbids it they are slow."""
        self._runtime.pin(ctypes.addressof(ctypes.c_char.from_buffer(memory)), num_bytes)

    def creation(self) -> contextlib.AbstractContextManager[Any]:
        return torch.device("cuda")

    def copy_in(self, tensor: torch.Tensor) -> torch.Tensor:
        return tensor.to("cuda", copy=True)

    def copy_out(self, tensor: torch.Tensor) -> torch.Tensor:
        return tensor.cpu()

    def keep(self, tensor: torch.Tensor) -> torch.Tensor:
        return tensor.detach().to("cuda")

    def kept_leaf(self, tensor: torch.Tensor) -> dict[str, Any]:
        return layout_of(tensor) | {"address": 0, "storage": [0, 0]}

    def write(self, tensor: torch.Tensor, host: torch.Tensor) -> None:
        if tensor.numel():
            _flat(host).copy_(_flat(tensor))

    def arguments(self, slot: int, host: list[torch.Tensor]) -> list[torch.Tensor]:
        """Copied into memory that stays the slot's: new contents come into the same storage as before."""
        if slot not in self._slots:
            self._slots[slot] = [_empty_like(tensor) for tensor in host]
        placed = []
        for tensor, flat in zip(host, self._slots[slot], strict=True):
            if tensor.numel():
                flat.copy_(_flat(tensor))
            placed.append(flat.as_strided(tensor.shape, tensor.stride()))
        return placed

    def stage(self, slot: int, host: list[torch.Tensor]) -> None:
        if slot not in self._staged:
            self._staged[slot] = [_empty_like(tensor) for tensor in host]
        for tensor, flat in zip(host, self._staged[slot], strict=True):
            if tensor.numel():
                flat.copy_(_flat(tensor))

    def mixed(self, slot: int, leaves: list[dict[str, Any]], mix: list[list[list[int]]]) -> list[torch.Tensor]:
        if slot not in self._slots:
            self._slots[slot] = [torch.empty_like(flat) for flat in next(iter(self._staged.values()))]
        placed = []
        for index, (leaf, flat, pieces) in enumerate(zip(leaves, self._slots[slot], mix, strict=True)):
            for source, start, end in pieces:
                flat[start:end].copy_(self._staged[source][index][start:end])
            placed.append(flat.as_strided(leaf["shape"], leaf["stride"]))
        return placed

    def contents(self, slot: int, leaves: list[dict[str, Any]]) -> list[torch.Tensor]:
        flats = zip(leaves, self._slots[slot], strict=True)
        return [flat.clone().as_strided(leaf["shape"], leaf["stride"]) for leaf, flat in flats]

    def elements(self, tensors: list[torch.Tensor], places: list[list[int]]) -> bytes:
        """One copy to the GPU, one back: as many as there are tensors take longer than what is timed."""
        for tensor, wanted in zip(tensors, places, strict=True):
            if wanted and (not self.address_of(tensor) or tensor.numel() <= max(wanted)):
                text = f"a timed call returned {tuple(tensor.shape)} on {tensor.device}, not what it did before"
                raise ValueError(text)
        offsets = [_offsets(tensor, wanted) for tensor, wanted in zip(tensors, places, strict=True)]
        if not sum(map(len, offsets)):
            return b""
        there = torch.from_numpy(np.concatenate(offsets)).cuda().split([len(each) for each in offsets])
        pairs = [(tensor, where) for tensor, where in zip(tensors, there, strict=True) if len(where)]
        found = [_flat(tensor.detach())[where].view(torch.uint8) for tensor, where in pairs]
        return torch.cat(found).cpu().numpy().tobytes()

    def copy_back(self, slot: int, host: list[torch.Tensor]) -> None:
        """What a slot's inputs hold now, into the arena: the supervisor looks whether a call has changed them."""
        for tensor, flat in zip(host, self._slots[slot], strict=True):
            if tensor.numel():
                _flat(tensor).copy_(flat)

    def input_ranges(self) -> list[list[int]]:
        tensors = [flat for slot in self._slots.values() for flat in slot if flat.numel()]
        return [[flat.data_ptr(), flat.data_ptr() + flat.nbytes] for flat in tensors]

    def before_batch(self, *, observe: bool) -> None:
        """Free memory holds garbage: a large block of it from the first check on, and all that was freed since."""
        garbage = random.choice(_GARBAGE)
        if observe and not self._poisoned:
            self._poisoned = True
            torch.cuda.empty_cache()
            free_bytes, _ = torch.cuda.mem_get_info()
            sizes = [min(int(free_bytes * _POISON_SHARE), _MAX_POISON_BYTES)] + [_SMALL_BLOCK_BYTES] * _SMALL_BLOCKS
            blocks = [torch.empty(size, dtype=torch.uint8, device="cuda") for size in sizes]
            del blocks  # their memory stays with the allocator, and is filled below
        for segment in torch.cuda.memory_snapshot():
            for block in segment["blocks"]:
                if block["state"] == "inactive":
                    self._runtime.fill(block["address"], garbage, block["size"])
        torch.cuda.synchronize()
        self._runtime.clear_error()

    def run(self, model: Callable[..., Any], calls: list[list[Any]], outputs: list[Any]) -> dict[str, Any]:
        times = self._clock.run(model, calls, outputs)
        if self.tampering():
            raise RuntimeError(_PERSISTING)
        return times

    def address_of(self, tensor: Any) -> int:
        return address_of(tensor, "cuda")

    def leaf_of(self, tensor: Any) -> dict[str, Any]:
        """Copies the output's memory to the host, where the supervisor reads it."""
        address = self.address_of(tensor)
        if not address and tensor.numel():
            return layout_of(tensor) | {"stride": [], "address": 0, "storage": [0, 0]}
        copy = self._host_copy(tensor)
        storage = tensor.untyped_storage()
        return layout_of(tensor) | {
            "address": copy.data_ptr(),
            "device_address": address,
            "storage": [storage.data_ptr(), storage.nbytes()],
        }

    def overwrite(self, tensors: list[Any], byte: int) -> None:
        """Destroys results that the model may have kept."""
        for tensor in tensors:
            address = self.address_of(tensor)
            if address and tensor.numel():
                self._runtime.fill(address, byte, _span(tensor) * tensor.element_size())
        torch.cuda.synchronize()

    def release(self) -> None:
        for copy in self._copies:
            self._spare_copies.setdefault((copy.dtype, copy.numel()), []).append(copy)
        self._copies.clear()

    def _host_copy(self, tensor: torch.Tensor) -> torch.Tensor:
        """Outputs have the same sizes again and again: their memory on the host is pinned, and used again."""
        if not tensor.numel():
            return torch.empty(0, dtype=tensor.dtype)
        flat = _flat(tensor.detach())
        spare = self._spare_copies.get((flat.dtype, flat.numel()))
        if spare:
            copy = spare.pop()
        else:
            copy = torch.empty(flat.numel(), dtype=flat.dtype)
            if copy.nbytes >= _WORTH_PINNING_BYTES:
                self._runtime.pin(copy.data_ptr(), copy.nbytes)
        self._copies.append(copy.copy_(flat))
        return copy

    def warm_libraries(self) -> None:
        for dtype in (torch.float32, torch.float64):
            small = torch.ones(64, 64, dtype=dtype, device="cuda")
            torch.mm(small, small)
        torch.cuda.synchronize()

    def probe(self) -> list[float]:
        return self._clock.probe()

    def copy_rate(self, num_bytes: int) -> float:
        return self._clock.copy_rate(num_bytes)

    def tampering(self) -> list[str]:
        limit = self._runtime.limit(_LIMIT_PERSISTING_L2)
        return [_PERSISTING] if limit not in (None, self._persisting_bytes) else []


def _offsets(tensor: torch.Tensor, places: list[int]) -> np.ndarray:
    """Elements from the first of a tensor to those at places, counted as in a contiguous one."""
    rest = np.array(places, np.int64)
    offsets = np.zeros_like(rest)
    for size, step in zip(reversed(tensor.shape), reversed(tensor.stride()), strict=True):
        offsets += rest % size * step
        rest //= size
    return offsets


def _span(tensor: torch.Tensor) -> int:
    """Elements from the first to past the last in memory."""
    if tensor.numel() == 0:
        return 0
    return 1 + sum((size - 1) * step for size, step in zip(tensor.shape, tensor.stride(), strict=True))


def _empty_like(tensor: torch.Tensor) -> torch.Tensor:
    return torch.empty(_span(tensor), dtype=tensor.dtype, device="cuda")


def _flat(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.as_strided((_span(tensor),), (1,), tensor.storage_offset())
