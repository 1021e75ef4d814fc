"""Which stored tensor is which parameter of ours, and in what layout.

A stored matrix is [outputs, inputs]; ours is [*inputs, *outputs] with heads as an axis of their own, and the matrices
of all layers (and of all experts of a layer) lie in one parameter with leading axes for them.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np


class WeightsError(ValueError):
    """A model folder's weights are missing, incomplete, or don't fit its config.json."""


@dataclass(frozen=True)
class Rule:
    """One parameter of ours and its stored tensors: hf_name has a {} for the layer and one for the expert, if any."""

    path: tuple[str, ...]
    hf_name: str
    num_inputs: int = 0
    """Leading axes that a matrix sums over; 0 for vectors and tables, which are stored in our order."""

    @property
    def num_stacked(self) -> int:
        """Leading axes of the parameter along which stored tensors are stacked."""
        return self.hf_name.count("{}")

    def places(self, shape: tuple[int, ...]) -> Iterator[tuple[int, ...]]:
        """Indices along the stacked axes, one for each stored tensor."""
        return itertools.product(*map(range, shape[: self.num_stacked]))

    def to_hf(self, value: np.ndarray) -> np.ndarray:
        """One layer's, or expert's, parameter -> the stored layout, contiguous."""
        return np.ascontiguousarray(self.arranged(value))

    def arranged(self, value: Any) -> Any:
        """The same for an array on any device."""
        if self.num_inputs == 0:
            return value.reshape(-1) if self.path[-1] == "bias" else value
        num_in = int(np.prod(value.shape[: self.num_inputs]))
        return value.reshape(num_in, -1).T

    def from_hf(self, stored: np.ndarray, shape: tuple[int, ...]) -> np.ndarray:
        """The stored tensor -> one layer's, or expert's, parameter. Raises WeightsError where the sizes don't fit."""
        expected = self.to_hf(np.empty(shape, np.bool_)).shape
        if stored.shape != expected:
            raise WeightsError(f"shape {stored.shape} where config.json asks for {expected}")
        return (stored.T if self.num_inputs else stored).reshape(shape)


ATTENTION_MATRICES = {f"{name}_proj": ("attention", name) for name in "qkvo"}
MLP_MATRICES = {f"{name}_proj": ("mlp", name) for name in ("gate", "up", "down")}
"""Stored name of a layer's matrix -> where it lies in our block."""

_LAYER = "model.layers.{}."
_ATTENTION = f"{_LAYER}self_attn."

SHARED_RULES = (
    Rule(("embedding",), "model.embed_tokens.weight"),
    Rule(("lm_head",), "lm_head.weight"),
    Rule(("norm", "scale"), "model.norm.weight"),
    Rule(("layers", "attention_norm", "scale"), f"{_LAYER}input_layernorm.weight"),
    *(Rule(("layers", "attention", name, "kernel"), f"{_ATTENTION}{name}_proj.weight", 1) for name in "qkv"),
    Rule(("layers", "attention", "o", "kernel"), f"{_ATTENTION}o_proj.weight", 2),
    *(Rule(("layers", "attention", name, "bias"), f"{_ATTENTION}{name}_proj.bias") for name in "qkvo"),
    *(Rule(("layers", "attention", f"{name}_norm", "scale"), f"{_ATTENTION}{name}_norm.weight") for name in "qk"),
)
"""What every family stores under the same names."""

PRE_NORM_RULE = Rule(("layers", "mlp_norm", "scale"), f"{_LAYER}post_attention_layernorm.weight")
SANDWICH_NORM_RULES = (
    Rule(("layers", "attention_out_norm", "scale"), f"{_LAYER}post_attention_layernorm.weight"),
    Rule(("layers", "mlp_norm", "scale"), f"{_LAYER}pre_feedforward_layernorm.weight"),
    Rule(("layers", "mlp_out_norm", "scale"), f"{_LAYER}post_feedforward_layernorm.weight"),
)
MLP_RULES = tuple(
    Rule(("layers", "mlp", name, part), f"{_LAYER}mlp.{name}_proj.{stored}", num_inputs)
    for name in ("gate", "up", "down")
    for part, stored, num_inputs in (("kernel", "weight", 1), ("bias", "bias", 0))
)
EXPERT_RULES = (
    Rule(("layers", "mlp", "router"), f"{_LAYER}mlp.gate.weight", 1),
    *(
        Rule(("layers", "mlp", name), f"{_LAYER}mlp.experts.{{}}.{name}_proj.weight", 1)
        for name in ("gate", "up", "down")
    ),
)
