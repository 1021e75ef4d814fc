import torch
import torch.nn as nn
import cpp_kernels


class ModelNew(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.dropout = nn.Dropout(0.3)

    def forward(self, x, y):
        total = torch.empty_like(x)
        cpp_kernels.twice_and_sum(x, y, total, x.numel())
        return self.dropout(x), y, total
