"""Eight steps of Newton's method for a cube root with sign, elementwise: many operations, little memory."""

import torch
import torch.nn as nn


class Model(nn.Module):
    def __init__(self, steps):
        super().__init__()
        self.steps = steps

    def forward(self, x):
        size = x.abs() + 0.125
        root = 0.5 + 0.5 * size
        for _ in range(self.steps):
            root = root - (root - size / (root * root)) / 3
        return torch.sign(x) * root


def get_inputs():
    return [torch.randn(2048, 4096)]


def get_init_inputs():
    return [8]
