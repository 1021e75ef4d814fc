import torch
import torch.nn as nn


class Model(nn.Module):
    def __init__(self, words: int, width: int) -> None:
        super().__init__()
        self.table = nn.Linear(width, words, bias=False)
        self.head = nn.Linear(width, words, bias=False)
        self.head.weight = self.table.weight

    def forward(self, x, factor):
        y = self.head(x) * factor
        return y, y.abs().max().item()


def get_inputs():
    return [torch.randn(40, 64), torch.rand(())]


def get_init_inputs():
    return [50, 64]
