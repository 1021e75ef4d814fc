"""Tasks of one layer of transformers, made from a small config and used alone."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from jaxagent.synthesis.catalogue.blocks import Block, find_blocks


@dataclass(frozen=True, slots=True)
class BlockTask:
    """A candidate: whether the layer runs on these sizes is the filters' to find out."""

    code: str
    cls: str


def compose_block(rng: np.random.Generator) -> BlockTask | None:
    """Any layer that takes hidden states alone; None where transformers is not installed."""
    usable = [block for block in find_blocks() if block.why is None]
    if not usable:
        return None
    block = usable[rng.integers(len(usable))]
    width = int(rng.choice([256, 384, 512, 768]))
    batch, length = int(rng.choice([2, 4, 8, 16])), int(rng.choice([64, 128, 256]))
    return BlockTask(_text(block, width, batch, length), block.cls)


def _text(block: Block, width: int, batch: int, length: int) -> str:
    config = f"hidden_size=hidden_size, intermediate_size={2 * width}, num_attention_heads={max(1, width // 64)}"
    more = "".join(f", {name}=0" for name in block.arguments[1:])
    return f"""import torch
import torch.nn as nn
from {block.module} import {block.config}, {block.cls}


class Model(nn.Module):
    def __init__(self, hidden_size):
        super().__init__()
        self.block = {block.cls}({block.config}({config}){more})

    def forward(self, x):
        return self.block(x)


def get_inputs():
    return [torch.randn({batch}, {length}, {width})]


def get_init_inputs():
    return [{width}]
"""
