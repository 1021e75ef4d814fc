"""A worker's tensors in the host's memory, and the allocator that gives them out."""

from __future__ import annotations

import contextlib
import ctypes
import mmap
import os
from collections.abc import Callable
from typing import Any, Literal

import torch

from sandbox.judge.placement import address_of, leaf_of

_M_MMAP_THRESHOLD, _M_TRIM_THRESHOLD, _M_TOP_PAD, _M_PERTURB = -3, -1, -2, -6
_MAP_FIXED = 0x10
_POISON = 0x80
"""glibc fills new blocks with its complement 0x7f: 3.4e38 as float32, so memory read before it is written shows."""


class HostPlacement:
    """Models run where the arena lies."""

    kind: Literal["cpu", "cuda"] = "cpu"

    def start(self) -> dict[str, Any]:
        return {}

    def share(self, memory: Any, num_bytes: int) -> None:
        pass

    def creation(self) -> contextlib.AbstractContextManager[Any]:
        return contextlib.nullcontext()

    def copy_in(self, tensor: torch.Tensor) -> torch.Tensor:
        return tensor.clone()

    def copy_out(self, tensor: torch.Tensor) -> torch.Tensor:
        return tensor

    def keep(self, tensor: torch.Tensor) -> torch.Tensor:
        return tensor

    def kept_leaf(self, tensor: torch.Tensor) -> dict[str, Any]:
        return leaf_of(tensor)

    def write(self, tensor: torch.Tensor, host: torch.Tensor) -> None:
        raise _no_gpu()

    def arguments(self, slot: int, host: list[torch.Tensor]) -> list[torch.Tensor]:
        return host

    def stage(self, slot: int, host: list[torch.Tensor]) -> None:
        raise _no_gpu()

    def mixed(self, slot: int, leaves: list[dict[str, Any]], mix: list[list[list[int]]]) -> list[torch.Tensor]:
        raise _no_gpu()

    def contents(self, slot: int, leaves: list[dict[str, Any]]) -> list[torch.Tensor]:
        raise _no_gpu()

    def elements(self, tensors: list[torch.Tensor], places: list[list[int]]) -> bytes:
        raise _no_gpu()

    def input_ranges(self) -> list[list[int]]:
        return []

    def before_batch(self, *, observe: bool) -> None:
        _MALLOPT(_M_PERTURB, _POISON if observe else 0)

    def run(self, model: Callable[..., Any], calls: list[list[Any]], outputs: list[Any]) -> dict[str, Any]:
        for arguments in calls:
            outputs.append(model(*arguments))
        return {}

    def address_of(self, tensor: Any) -> int:
        return address_of(tensor)

    def leaf_of(self, tensor: Any) -> dict[str, Any]:
        return leaf_of(tensor)

    def release(self) -> None:
        pass

    def copy_back(self, slot: int, host: list[torch.Tensor]) -> None:
        pass

    def overwrite(self, tensors: list[Any], byte: int) -> None:
        pass

    def copy_rate(self, num_bytes: int) -> float | None:
        return None  # caches of hundreds of megabytes: memory bandwidth would reject honest kernels

    def warm_libraries(self) -> None:
        pass

    def probe(self) -> list[float]:
        return []

    def tampering(self) -> list[str]:
        return []


def _no_gpu() -> ValueError:
    return ValueError("on a CPU the supervisor writes inputs into the arena, and reads outputs, itself")


def settle_allocator() -> None:
    """Makes glibc keep freed blocks, as it does after a while in a long-lived process.

    By default its thresholds move with the sizes freed so far, so that the same task reads several times slower or
    faster by what its process did before. Fixed thresholds put candidate, eager and torch.compile on one footing.
    """
    _MALLOPT(_M_MMAP_THRESHOLD, 32 << 20)
    _MALLOPT(_M_TRIM_THRESHOLD, 1 << 30)
    _MALLOPT(_M_TOP_PAD, 64 << 20)


def replace_code(ranges: list[list[int]], fd: int, num_bytes: int) -> None:
    """Maps the first `num_bytes` of a file as code over each range of addresses, as often as it takes."""
    for start, end in ranges:
        for place in range(start, end, num_bytes):
            length = min(num_bytes, end - place)
            if _MMAP(place, length, mmap.PROT_READ | mmap.PROT_EXEC, mmap.MAP_PRIVATE | _MAP_FIXED, fd, 0) != place:
                number = ctypes.get_errno()
                raise OSError(number, f"code at {place:#x} cannot be replaced: {os.strerror(number)}")


def _mmap() -> Callable[[int, int, int, int, int, int], int]:
    function = ctypes.CDLL(None, use_errno=True).mmap
    function.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int, ctypes.c_int, ctypes.c_int, ctypes.c_long]
    function.restype = ctypes.c_void_p
    return function


def _mallopt() -> Callable[[int, int], int]:
    function = ctypes.CDLL(None).mallopt
    function.argtypes, function.restype = [ctypes.c_int, ctypes.c_int], ctypes.c_int
    return function


_MALLOPT, _MMAP = _mallopt(), _mmap()
