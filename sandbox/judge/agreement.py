"""Tensors of the reference's process compared with each other, where they lie."""

from __future__ import annotations

import math
from typing import Any

import torch

from sandbox.judge.placement import Placement
from sandbox.judge.serving import is_tensor
from sandbox.judge.values import flatten

TOLERANCE = {"float32": 1e-4, "float64": 1e-4, "float16": 1e-2, "bfloat16": 1e-2}
_BLOCK = 1 << 15
"""Elements."""


def matching_double(exact: Any, eager: list[Any]) -> list[Any]:
    """For each eager output its float64 answer, contiguous; None for integers or where there is none."""
    tensors: list[Any] = []
    if exact is not None:
        flatten(exact, is_tensor, tensors)
    if len(tensors) != len(eager):
        tensors = [None] * len(eager)
    return [
        wide.contiguous()
        if wide is not None
        and narrow.is_floating_point()
        and wide.dtype == torch.float64
        and wide.shape == narrow.shape
        else None
        for wide, narrow in zip(tensors, eager, strict=True)
    ]


def meets_tolerance(eager: list[Any], exact: list[Any]) -> bool:
    """True where eager float32 itself stays within the hardened tolerance of float64."""
    for narrow, wide in zip(eager, exact, strict=True):
        dtype = str(narrow.dtype).removeprefix("torch.")
        if wide is None or dtype not in TOLERANCE or wide.numel() == 0:
            continue
        if not is_close(narrow, wide, TOLERANCE[dtype]):
            return False
    return True


def is_close(narrow: torch.Tensor, wide: torch.Tensor, tolerance: float) -> bool:
    """Whether all of a tensor lies within the tolerance of its float64 answer; on a CPU block by block, since what is
    found of a whole tensor does not fit a cache."""
    scale = torch.linalg.vector_norm(wide) / math.sqrt(wide.numel())
    if bool(torch.isfinite(scale)):
        size = _BLOCK if wide.device.type == "cpu" else max(1, wide.numel())
        blocks = zip(narrow.reshape(-1).split(size), wide.reshape(-1).split(size), strict=True)
        return all(bool(((a - b).abs_() <= (b.abs() + scale).mul_(tolerance)).all()) for a, b in blocks)
    finite = torch.isfinite(wide)
    if not torch.equal(finite, torch.isfinite(narrow)):
        return False
    return not bool(finite.any()) or is_close(narrow[finite].double(), wide[finite], tolerance)


def is_finite(tensor: torch.Tensor) -> bool:
    """Whether all of a tensor of floats is; NaN is passed on by both ends."""
    return tensor.numel() == 0 or bool(torch.isfinite(torch.stack(tensor.aminmax())).all())


def shares_storage(tensor: Any, inputs: list[Any], placement: Placement) -> bool:
    storages = {leaf.untyped_storage().data_ptr() for leaf in inputs if placement.address_of(leaf)}
    return bool(placement.address_of(tensor)) and tensor.untyped_storage().data_ptr() in storages


def same_bytes(first: torch.Tensor, second: torch.Tensor) -> bool:
    return torch.equal(first.contiguous().view(-1).view(torch.uint8), second.contiguous().view(-1).view(torch.uint8))
