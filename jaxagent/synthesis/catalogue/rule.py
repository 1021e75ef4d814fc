"""What a shape rule is: from the tensor that flows into an operator to the code of one step and the tensor it gives.

Layouts, with the batch first:  rows [N, F] · sequence [N, T, F] · signal [N, C, L] · image [N, C, H, W] ·
volume [N, C, D, H, W] · any other shape is `other`.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Literal

import numpy as np

Layout = Literal["rows", "sequence", "signal", "image", "volume", "other"]
SPATIAL: tuple[Layout, ...] = ("signal", "image", "volume")
DENSE: tuple[Layout, ...] = ("rows", "sequence")
ALL: tuple[Layout, ...] = ("rows", "sequence", "signal", "image", "volume")
ANY: tuple[Layout, ...] = (*ALL, "other")


@dataclass(frozen=True, slots=True)
class Flow:
    """The tensor between two steps."""

    layout: Layout
    shape: tuple[int, ...]

    @property
    def elements(self) -> int:
        return math.prod(self.shape)

    @property
    def features(self) -> int:
        """Size of the axis that weights are shared over: the last one of rows and sequences, else the channels."""
        axis = len(self.shape) - 1 if self.layout in DENSE or len(self.shape) < 2 else 1
        return self.shape[axis]

    @property
    def spatial(self) -> tuple[int, ...]:
        return self.shape[2:] if self.layout in SPATIAL else ()

    def with_features(self, features: int) -> Flow:
        if self.layout in DENSE:
            return replace(self, shape=(*self.shape[:-1], features))
        return replace(self, shape=(self.shape[0], features, *self.shape[2:]))

    def with_spatial(self, *sizes: int) -> Flow:
        return replace(self, shape=(*self.shape[:2], *sizes))


@dataclass(frozen=True, slots=True)
class Step:
    """One operator in a task.

    In `module` and `call`, `{name}` stands for a size that the task's constructor is given. `call` is the right side of
    `x = …`; `{self}` in it is the module, `{other}` a further input.
    """

    rule: str
    call: str
    after: Flow
    module: str | None = None
    sizes: dict[str, int] = field(default_factory=dict)
    other: str | None = None
    """Source of a further input of forward, as in get_inputs."""
    flops: float = 0.0
    element_cost: float = 1.0
    """Work besides `flops`, in passes over the larger of input and output."""
    ends: bool = False
    """Nothing may follow: the output is no float tensor, several tensors, or a single number."""


Draw = Callable[[np.random.Generator, Flow], Step | None]


@dataclass(frozen=True, slots=True)
class Rule:
    """One operator. `draw` gives a step for a tensor of one of the `layouts`, or None where it does not fit."""

    name: str
    family: str
    layouts: tuple[Layout, ...]
    draw: Draw

    def step(self, rng: np.random.Generator, flow: Flow) -> Step | None:
        return self.draw(rng, flow) if flow.layout in self.layouts else None


def short(name: str) -> str:
    """How a task writes an operator: nn.Linear, F.gelu, torch.tanh."""
    if name.startswith("torch.nn.functional."):
        return name.replace("torch.nn.functional.", "F.")
    return name.replace("torch.nn.", "nn.") if name.startswith("torch.nn.") else name


def module_step(name: str, flow: Flow, after: Flow, *, text: str = "", **more: object) -> Step:
    """A step of a torch.nn module, called on x alone; `text`: the constructor's arguments."""
    return Step(rule=name, call="{self}(x)", after=after, module=f"{short(name)}({text})", **more)  # type: ignore[arg-type]


def call_step(name: str, after: Flow, *, text: str = "", **more: object) -> Step:
    """A step of a function; `text`: arguments behind x."""
    return Step(rule=name, call=f"{short(name)}(x{', ' if text else ''}{text})", after=after, **more)  # type: ignore[arg-type]


def pick(rng: np.random.Generator, *values: int) -> int:
    return int(values[rng.integers(len(values))])


def nearby_features(rng: np.random.Generator, features: int, *, low: int = 16, high: int = 2048) -> int:
    """Half, the same, or double, and sometimes no power of two."""
    scaled = features * pick(rng, 1, 2, 2, 3, 4) // 2
    return int(min(high, max(low, scaled)))
