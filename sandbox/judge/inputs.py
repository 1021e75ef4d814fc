"""Other inputs of a task than get_inputs() draws: transformed, and changed in one block.

Transforms touch float tensors only. Integers, bools, infinities, NaN and exact zeros stay as they are, since they are
indices, masks and structure (triangular, sparse) that a task may rely on.
"""

from __future__ import annotations

from collections.abc import Callable

import torch

Transform = Callable[[torch.Tensor], torch.Tensor]

UNIT: dict[str, Transform] = {
    "squared": lambda x: x * x,
    "one minus x": lambda x: 1 - x,
    "0.25 + 0.5 x": lambda x: 0.25 + 0.5 * x,
}
POSITIVE: dict[str, Transform] = {
    "times 3": lambda x: x * 3,
    "times 0.01": lambda x: x * 0.01,
    "negated": lambda x: -x,
}
GENERAL: dict[str, Transform] = {
    "times 3": lambda x: x * 3,
    "times 0.01": lambda x: x * 0.01,
    "negated": lambda x: -x,
    "plus one standard deviation": lambda x: x + x[torch.isfinite(x)].std(correction=0),
}


def transforms_for(tensors: list[torch.Tensor]) -> dict[str, Transform]:
    """Those that suit the range of a natural draw: within [0, 1], non-negative, or anything."""
    low, high = float("inf"), float("-inf")
    for tensor in tensors:
        finite = tensor[torch.isfinite(tensor)] if tensor.is_floating_point() else tensor[:0]
        if finite.numel():
            low, high = min(low, float(finite.min())), max(high, float(finite.max()))
    if low > high:
        return {}
    if low >= 0 and high <= 1:
        return UNIT
    return POSITIVE if low >= 0 else GENERAL


def apply_transform(transform: Transform, tensor: torch.Tensor) -> torch.Tensor:
    """The same layout, with `transform` applied to the finite nonzero elements of a float tensor."""
    if not tensor.is_floating_point() or tensor.numel() == 0:
        return _copy(tensor)
    changed = transform(tensor).to(tensor.dtype)
    keep = ~torch.isfinite(tensor) | (tensor == 0)
    return _like(tensor, torch.where(keep, tensor, changed))


def change_block(tensor: torch.Tensor, other: torch.Tensor, generator: torch.Generator) -> torch.Tensor:
    """One random block in the inside of `tensor`, in memory order, replaced by another natural draw's."""
    changed = _copy(tensor)
    count = tensor.numel()
    if not tensor.is_floating_point() or count < 8 or not tensor.is_contiguous() or other.shape != tensor.shape:
        return changed
    length = max(1, min(count // 16, 4096))
    start = int(torch.randint(1, count - length, (1,), generator=generator))
    changed.view(-1)[start : start + length] = other.reshape(-1)[start : start + length]
    return changed


def perturb_parameters(model: torch.nn.Module, originals: dict[str, torch.Tensor], generator: torch.Generator) -> None:
    """Noise of their own scale on float parameters; running means and variances redrawn. All in place.

    A parameter of zeros gets noise of standard deviation 0.1, ones get the same around one: skipping an affine map
    that was left at its initial values then shows.
    """
    parameters = {name for name, _ in model.named_parameters(remove_duplicate=False)}
    with torch.no_grad():
        for name, tensor in model.state_dict().items():
            original = originals[name]
            if not tensor.is_floating_point():
                continue
            if name in parameters:
                spread = float(original.float().std(correction=0)) if original.numel() > 1 else 0.0
                scale = spread if spread > 1e-6 else max(0.1 * float(original.float().abs().mean()), 0.1)
                noise = torch.randn(original.shape, generator=generator)
                tensor.copy_(original + (0.5 * scale * noise).to(tensor.dtype))
            elif name.rpartition(".")[2] == "running_mean":
                tensor.copy_(torch.randn(original.shape, generator=generator) * 0.5)
            elif name.rpartition(".")[2] == "running_var":
                tensor.copy_(torch.rand(original.shape, generator=generator) * 1.5 + 0.5)


def _copy(tensor: torch.Tensor) -> torch.Tensor:
    return _like(tensor, tensor)


def _like(layout: torch.Tensor, values: torch.Tensor) -> torch.Tensor:
    for axis, (size, step) in enumerate(zip(layout.shape, layout.stride(), strict=True)):
        if size > 1 and step == 0:  # expanded: one element stands for all along this axis
            values = values.narrow(axis, 0, 1)
    result = torch.empty_strided(values.shape, layout.stride(), dtype=layout.dtype, device=layout.device)
    return result.copy_(values).expand(layout.shape)
