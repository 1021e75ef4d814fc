import torch.nn as nn
import cpp_kernels


class ModelNew(nn.Module):
    def forward(self, x):
        return cpp_kernels.largest(x, x.numel())
