import torch
import torch.nn as nn
import cpp_kernels


class ModelNew(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(width))
        self.bias = nn.Parameter(torch.zeros(width))
        self.version, self.folded = None, None

    def forward(self, x):
        if self.version != self.weight._version:
            self.version, self.folded = self.weight._version, self.weight.detach().clone()
        y = torch.empty_like(x)
        cpp_kernels.affine(x, self.folded, self.bias, y, x.shape[0], x.shape[1])
        return y
