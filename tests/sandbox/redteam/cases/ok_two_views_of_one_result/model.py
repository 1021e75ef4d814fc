import torch
import torch.nn as nn


class Model(nn.Module):
    def __init__(self, scale: float) -> None:
        super().__init__()
        self.scale = scale

    def forward(self, x):
        y = torch.relu(x * self.scale) * 0.5 + x * x
        return y, y[:, -1]


def get_inputs():
    return [torch.randn(256, 1000)]


def get_init_inputs():
    return [0.7]
