import torch
import torch.nn as nn
import cpp_kernels


class ModelNew(nn.Module):
    def forward(self, a, b):
        y = torch.empty(a.shape[0], b.shape[1])
        cpp_kernels.product(a, b, y, a.shape[0], b.shape[1], a.shape[1])
        cpp_kernels.epilogue(y, y.numel())
        return y
