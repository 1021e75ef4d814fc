import sys
import torch
import torch.nn as nn
import cpp_kernels


class Finder:
    def find_spec(self, name, path=None, target=None):
        return None


sys.meta_path.insert(0, Finder())


class ModelNew(nn.Module):
    def __init__(self, scale: float) -> None:
        super().__init__()
        self.scale = scale

    def forward(self, x):
        y = torch.empty_like(x)
        cpp_kernels.chain(x, y, x.numel(), self.scale)
        return y
