import torch
import torch.nn as nn
import cpp_kernels


class ModelNew(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(width))
        self.bias = nn.Parameter(torch.zeros(width))
        self._scratch = {}

    def forward(self, x):
        if x.shape not in self._scratch:
            self._scratch[x.shape] = torch.empty_like(x)
        scratch = self._scratch[x.shape]
        y = torch.empty_like(x)
        cpp_kernels.scaled(x, self.weight, scratch, x.shape[0], x.shape[1])
        cpp_kernels.shifted(scratch, self.bias, y, x.shape[0], x.shape[1])
        return y
