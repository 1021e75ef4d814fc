"""Rotary position embedding: pairs of a head are turned by an angle that grows with the position."""

import torch
import torch.nn as nn


class Model(nn.Module):
    def __init__(self, num_positions, head_dim):
        super().__init__()
        frequencies = 10000.0 ** (-torch.arange(0, head_dim, 2) / head_dim)
        angles = torch.outer(torch.arange(num_positions).float(), frequencies)
        self.register_buffer("cos", angles.cos())
        self.register_buffer("sin", angles.sin())

    def forward(self, x):
        first, second = x.chunk(2, dim=-1)
        return torch.cat([first * self.cos - second * self.sin, second * self.cos + first * self.sin], dim=-1)


def get_inputs():
    return [torch.randn(8, 16, 1024, 64)]


def get_init_inputs():
    return [1024, 64]
