"""How far two outputs of a reference lie apart, in units of what the judge lets pass."""

from __future__ import annotations

from typing import Any

import torch

from sandbox.judge.values import ITEMSIZE

TOLERANCE = 1e-4
"""The judge's for float32: |a - b| <= 1e-4 (|b| + RMS of b), see sandbox.judge.compare."""
MAX_SAMPLE = 1 << 20
"""Elements of an output that are looked at, evenly spaced."""
INFINITE = 1e30
"""Stands for "not comparable": other shapes, or NaN on one side only."""


def sample_of(tensor: torch.Tensor) -> torch.Tensor:
    """At most MAX_SAMPLE elements of a tensor, evenly spaced, as a copy in the host's memory."""
    flat = tensor.detach().reshape(-1)
    step = -(-flat.numel() // MAX_SAMPLE) if flat.numel() else 1
    return flat[::step].cpu().clone()


def distance(first: torch.Tensor, second: torch.Tensor) -> float:
    """Root mean square of the differences in units of the tolerance; for integers, that of "differs" in the same units.

    Values that are not finite at the same places are equal there.
    """
    if first.shape != second.shape or first.dtype != second.dtype:
        return INFINITE
    if first.numel() == 0:
        return 0.0
    if not (first.is_floating_point() or first.is_complex()):
        return 0.0 if torch.equal(first, second) else INFINITE
    a, b = _wide(first), _wide(second)
    finite = torch.isfinite(b)
    if not torch.equal(finite, torch.isfinite(a)):
        return INFINITE
    a, b = a[finite], b[finite]
    if b.numel() == 0:
        return 0.0
    scale = b.abs() + b.square().mean().sqrt()
    units = torch.where(scale > 0, (a - b).abs() / (TOLERANCE * scale), torch.where(a == b, 0.0, INFINITE))
    return float(units.square().mean().sqrt().clamp(max=INFINITE))


def unchanged_share(samples: list[torch.Tensor]) -> float:
    """Share of the elements that are the same, bit for bit, in all samples; 1 where there are no elements."""
    first = samples[0]
    if first.numel() == 0 or any(sample.shape != first.shape for sample in samples):
        return 1.0 if first.numel() == 0 else 0.0
    same = torch.ones(first.shape, dtype=torch.bool)
    for sample in samples[1:]:
        same &= (sample == first) | (sample.isnan() & first.isnan() if first.is_floating_point() else False)
    return float(same.double().mean())


def largest(first: list[Any], second: list[Any]) -> float:
    """The largest distance between outputs of two runs."""
    if len(first) != len(second):
        return distance(torch.zeros(1), torch.zeros(2))
    return max((distance(a, b) for a, b in zip(first, second, strict=True)), default=0.0)


def typed_shape(tensor: Any) -> tuple[Any, ...]:
    """What has to be equal in all draws of inputs."""
    return tensor.dtype, tuple(tensor.shape)


def differs(first: torch.Tensor, second: torch.Tensor) -> bool:
    """Bit for bit, so that NaN equals itself."""
    if first.shape != second.shape or first.dtype != second.dtype:
        return True
    first, second = first.detach().contiguous().view(-1), second.detach().contiguous().view(-1)
    return not torch.equal(first.view(torch.uint8), second.view(torch.uint8))


def finite_share(sample: torch.Tensor) -> float:
    """Share of elements that are neither infinite nor NaN."""
    return float(torch.isfinite(sample).double().mean()) if sample.numel() else 1.0


def foreign(node: dict[str, Any], tensors: list[Any], *, outermost: bool = True) -> str | None:
    """What in an output is no plain tensor that can be judged; None where all is well.

    Tensors may stand in tuples, lists and dicts.
    """
    kind, value = node["kind"], node["value"]
    if kind == "tensor":
        tensor = tensors[value]
        dtype = str(tensor.dtype).removeprefix("torch.")
        if type(tensor) not in (torch.Tensor, torch.nn.Parameter):
            return f"a {type(tensor).__name__}"
        if tensor.layout is not torch.strided:
            return f"a tensor of layout {tensor.layout}"
        return None if dtype in ITEMSIZE else f"a tensor of type {dtype}"
    if kind in ("list", "tuple", "dict"):
        items = [item[1] for item in value] if kind == "dict" else value
        if not items:
            return f"an empty {kind}"
        return next((found for item in items if (found := foreign(item, tensors, outermost=False))), None)
    shown = value if kind == "other" else kind
    return f"a {shown}" if outermost else f"a {shown} among its tensors"


def _wide(tensor: torch.Tensor) -> torch.Tensor:
    return torch.view_as_real(tensor.to(torch.complex128)) if tensor.is_complex() else tensor.double()
