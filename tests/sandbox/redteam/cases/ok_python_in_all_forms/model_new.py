from __future__ import annotations

import collections
import enum
import functools
import itertools
import math
from dataclasses import dataclass, field, replace
from typing import NamedTuple, Optional

import torch
import torch.nn as nn
from torch import Tensor

import cpp_kernels


class Mode(enum.Enum):
    FLAT = enum.auto()
    ROWS = enum.auto()


@dataclass(frozen=True)
class Settings:
    scale: float
    mode: Mode = Mode.FLAT
    notes: list[str] = field(default_factory=list)


class Shape(NamedTuple):
    rows: int
    columns: int


@functools.lru_cache(maxsize=None)
def size_of(shape: tuple[int, ...]) -> int:
    return math.prod(shape)


def counted(function):
    @functools.wraps(function)
    def inner(*args, **kwargs):
        inner.calls += 1
        return function(*args, **kwargs)

    inner.calls = 0
    return inner


class Chain(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x: Tensor, scale: float) -> Tensor:
        y = torch.empty_like(x, memory_format=torch.contiguous_format)
        cpp_kernels.chain(x, y, size_of(tuple(x.shape)), scale)
        return y

    @staticmethod
    def backward(ctx, *grads):
        raise NotImplementedError(f"{type(ctx).__name__} has no backward")


class ModelNew(nn.Module):
    __constants__ = ["settings"]

    def __init__(self, scale: float) -> None:
        super().__init__()
        self.settings = replace(Settings(scale), notes=["plain"])
        self.register_buffer("scratch", torch.zeros(4), persistent=False)
        for number in range(2):
            setattr(self, f"part{number}", number)
        self.seen: dict[Shape, Optional[Tensor]] = collections.OrderedDict()

    @property
    def parts(self) -> int:
        return sum(getattr(self, f"part{number}") for number in range(2))

    @counted
    @torch.inference_mode()
    def forward(self, x: Tensor) -> Tensor:
        assert isinstance(x, torch.Tensor) and self.parts == 1, "one part"
        match x.dim(), x.dtype:
            case (2, torch.float32):
                shape = Shape(*x.shape)
            case _:
                raise TypeError(f"{x.dtype} {tuple(x.shape)}")
        if shape not in self.seen and hasattr(self, "scratch"):
            self.seen[shape] = self.scratch
        if self.settings.mode is Mode.ROWS:
            return torch.empty(list(itertools.repeat(1, 2)))
        return Chain.apply(x.contiguous(), self.settings.scale)
