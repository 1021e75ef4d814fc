import torch
import torch.nn as nn
import cpp_kernels


class ModelNew(nn.Module):
    def forward(self, x):
        y, roots = torch.empty_like(x), torch.empty(x.shape[0])
        cpp_kernels.special(x, y, roots, *x.shape)
        return y, roots
