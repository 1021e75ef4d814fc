"""Group normalisation over channels and pixels of images, then SiLU."""

import torch
import torch.nn as nn
import torch.nn.functional as F


class Model(nn.Module):
    def __init__(self, groups, channels):
        super().__init__()
        self.groups = groups
        self.weight = nn.Parameter(torch.rand(channels) + 0.5)
        self.bias = nn.Parameter(torch.rand(channels) - 0.5)

    def forward(self, x):
        return F.silu(F.group_norm(x, self.groups, self.weight, self.bias, eps=1e-5))


def get_inputs():
    return [torch.randn(32, 64, 64, 64)]


def get_init_inputs():
    return [16, 64]
