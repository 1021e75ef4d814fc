"""Squared distances between two sets of points of few dimensions, as weights of a Gaussian kernel."""

import torch
import torch.nn as nn


class Model(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.width = width

    def forward(self, points, centres):
        squares = (points[:, None, :] - centres[None, :, :]).square().sum(dim=-1)
        return torch.exp(-squares / (2 * self.width**2))


def get_inputs():
    return [torch.randn(4096, 4), torch.randn(2048, 4)]


def get_init_inputs():
    return [1.5]
