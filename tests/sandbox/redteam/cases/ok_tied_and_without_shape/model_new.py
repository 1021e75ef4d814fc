import torch
import torch.nn as nn
import cpp_kernels


class ModelNew(nn.Module):
    def __init__(self, words: int, width: int) -> None:
        super().__init__()
        self.table = nn.Linear(width, words, bias=False)
        self.head = nn.Linear(width, words, bias=False)
        self.head.weight = self.table.weight

    def forward(self, x, factor):
        y = torch.empty(x.shape[0], self.head.out_features)
        return y, cpp_kernels.head(x, self.head.weight, factor, y, x.shape[0], y.shape[1], x.shape[1])
