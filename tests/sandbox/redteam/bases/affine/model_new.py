import torch
import torch.nn as nn
import cpp_kernels


class ModelNew(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(width))
        self.bias = nn.Parameter(torch.zeros(width))

    def forward(self, x):
        y = torch.empty_like(x)
        cpp_kernels.affine(x, self.weight, self.bias, y, x.shape[0], x.shape[1])
        return y
