import torch
import torch.nn as nn
import cpp_kernels


class ModelNew(nn.Module):
    def __init__(self, scale: float) -> None:
        super().__init__()
        self.scale = scale
        self.kept = []

    def forward(self, x):
        y = torch.empty_like(x)
        cpp_kernels.chain(x, y, x.numel(), self.scale)
        self.kept.append(y)
        return y
