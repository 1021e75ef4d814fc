"""Inputs that are made from others keep their layout, and are what the transform says."""

from __future__ import annotations

import pytest
import torch

from sandbox.judge.inputs import GENERAL, apply_transform, change_block

LAYOUTS = {
    "dense": lambda: torch.randn(30, 20),
    "transposed": lambda: torch.randn(20, 30).t(),
    "with steps": lambda: torch.randn(30, 40)[:, ::2],
    "expanded": lambda: torch.randn(1, 20).expand(30, 20),
    "expanded in the middle": lambda: torch.randn(3, 1, 5).expand(3, 4, 5),
    "one column": lambda: torch.randn(4, 1),
}


@pytest.mark.parametrize("name", LAYOUTS)
def test_layouts_stay_and_values_are_transformed(name: str) -> None:
    tensor = LAYOUTS[name]()
    for transform in GENERAL.values():
        made = apply_transform(transform, tensor)
        assert (made.shape, made.stride()) == (tensor.shape, tensor.stride())
        torch.testing.assert_close(made, transform(tensor))
    block = change_block(tensor, torch.randn(tensor.shape), torch.Generator())
    assert (block.shape, block.stride()) == (tensor.shape, tensor.stride())
