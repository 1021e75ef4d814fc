"""Where a worker's tensors lie and how a batch of calls runs there: the host's memory (host.py), or a GPU (gpu.py)."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from typing import Any, Literal, Protocol

import torch

from sandbox.judge.arena import span_bytes
from sandbox.judge.values import ITEMSIZE

_data_ptr = torch.Tensor.data_ptr
_untyped_storage = torch.Tensor.untyped_storage


class Placement(Protocol):
    """The part of a worker that depends on the device. Candidate and reference use the same one."""

    kind: Literal["cpu", "cuda"]

    def start(self) -> dict[str, Any]:
        """Readies the device; facts about it for the supervisor."""
        ...

    def share(self, memory: Any, num_bytes: int) -> None:
        """Readies the arena's first bytes for copies, as far as that is possible."""
        ...

    def creation(self) -> contextlib.AbstractContextManager[Any]:
        """Tensors made inside without a device are made where models run."""
        ...

    def copy_in(self, tensor: torch.Tensor) -> torch.Tensor:
        """A copy of a host tensor where models run, with the same strides."""
        ...

    def copy_out(self, tensor: torch.Tensor) -> torch.Tensor:
        """A tensor in host memory with the same values."""
        ...

    def keep(self, tensor: torch.Tensor) -> torch.Tensor:
        """A tensor where draws and answers of the reference lie: beside the models."""
        ...

    def kept_leaf(self, tensor: torch.Tensor) -> dict[str, Any]:
        """Layout of a kept tensor, and its address where the supervisor can read it there."""
        ...

    def write(self, tensor: torch.Tensor, host: torch.Tensor) -> None:
        """Copies a kept tensor, with the gaps of its layout, into the arena's memory."""
        ...

    def arguments(self, slot: int, host: list[torch.Tensor]) -> list[torch.Tensor]:
        """The inputs of a call: the tensors of an arena's slot, or copies in memory that belongs to the slot."""
        ...

    def stage(self, slot: int, host: list[torch.Tensor]) -> None:
        """Copies a slot of the arena to where calls' inputs are mixed from."""
        ...

    def mixed(self, slot: int, leaves: list[dict[str, Any]], mix: list[list[list[int]]]) -> list[torch.Tensor]:
        """The inputs of a call, in memory that belongs to the slot, put together of pieces of what was staged:
        [source, first element, past the last]."""
        ...

    def contents(self, slot: int, leaves: list[dict[str, Any]]) -> list[torch.Tensor]:
        """A kept copy of what was mixed for a slot."""
        ...

    def elements(self, tensors: list[torch.Tensor], places: list[list[int]]) -> bytes:
        """Elements of each output, counted as in a contiguous tensor. Raises ValueError where there are fewer."""
        ...

    def input_ranges(self) -> list[list[int]]:
        """[first byte, past the last] of the memory that holds inputs, where it is not the arena."""
        ...

    def before_batch(self, *, observe: bool) -> None:
        """Fills memory that no tensor owns with garbage, as far as this device's clock allows."""
        ...

    def run(self, model: Callable[..., Any], calls: list[list[Any]], outputs: list[Any]) -> dict[str, Any]:
        """Calls the model, appends its results, returns once all work is done; what it can say about times."""
        ...

    def address_of(self, tensor: Any) -> int:
        """First byte, or 0 where a tensor has no plain memory on this device."""
        ...

    def leaf_of(self, tensor: Any) -> dict[str, Any]:
        """What the supervisor has to know to read an output; `address` is always in host memory."""
        ...

    def release(self) -> None:
        """Forgets what leaf_of copied."""
        ...

    def copy_back(self, slot: int, host: list[torch.Tensor]) -> None:
        """What a slot's inputs hold now, into the arena; nothing to do where they lie there."""
        ...

    def overwrite(self, tensors: list[Any], byte: int) -> None:
        """Destroys results; nothing to do where the supervisor writes into this process itself."""
        ...

    def copy_rate(self, num_bytes: int) -> float | None:
        """Bytes a millisecond, read and written, of a copy that moves `num_bytes`; None where it sets no floor."""
        ...

    def warm_libraries(self) -> None:
        """Readies what most references use, before it is known which."""
        ...

    def probe(self) -> list[float]:
        """Milliseconds of a small piece of work, from launch to end, several times; none on a CPU."""
        ...

    def tampering(self) -> list[str]:
        """Settings of the device that a candidate has changed."""
        ...


def make_placement(kind: str) -> Placement:
    if kind == "cpu":
        from sandbox.judge.host import HostPlacement

        return HostPlacement()
    from sandbox.judge.gpu import CudaPlacement

    return CudaPlacement()


def address_of(tensor: Any, device: str = "cpu") -> int:
    """First byte, or 0 where a tensor has no plain memory (sparse, lazy, another device)."""
    if type(tensor) not in (torch.Tensor, torch.nn.Parameter) or tensor.layout is not torch.strided:
        return 0
    return _data_ptr(tensor) if tensor.device.type == device else 0


def leaf_of(tensor: torch.Tensor) -> dict[str, Any]:
    """What the supervisor has to know to read a tensor of the host's memory."""
    address = address_of(tensor)
    if not address and tensor.numel():
        return layout_of(tensor) | {"stride": [], "address": 0, "storage": [0, 0]}
    storage = _untyped_storage(tensor)
    return layout_of(tensor) | {"address": address, "storage": [storage.data_ptr(), storage.nbytes()]}


def layout_of(tensor: torch.Tensor) -> dict[str, Any]:
    dtype = str(tensor.dtype).removeprefix("torch.")
    return {"dtype": dtype, "shape": list(tensor.shape), "stride": list(tensor.stride())}


def view_at(memory: Any, offset: int, leaf: dict[str, Any]) -> torch.Tensor:
    """A tensor over the memory of an arena."""
    dtype = getattr(torch, leaf["dtype"])
    num_bytes = span_bytes(leaf, ITEMSIZE[leaf["dtype"]])
    if num_bytes == 0:
        return torch.empty(leaf["shape"], dtype=dtype)
    flat = torch.frombuffer(memory, dtype=dtype, count=num_bytes // ITEMSIZE[leaf["dtype"]], offset=offset)
    return flat.as_strided(leaf["shape"], leaf["stride"])
