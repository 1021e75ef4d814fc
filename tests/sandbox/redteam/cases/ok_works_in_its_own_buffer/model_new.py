import torch
import torch.nn as nn
import cpp_kernels


class ModelNew(nn.Module):
    def __init__(self, scale: float) -> None:
        super().__init__()
        self.scale = scale

    def forward(self, x):
        y = x.clone()
        cpp_kernels.chain(y, y, y.numel(), self.scale)
        return y
