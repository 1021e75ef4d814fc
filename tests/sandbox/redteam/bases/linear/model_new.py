import torch
import torch.nn as nn
import cpp_kernels


class ModelNew(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.linear = nn.Linear(width, width)

    def forward(self, x):
        y = torch.empty(x.shape[0], self.linear.out_features)
        cpp_kernels.linear(x, self.linear.weight, self.linear.bias, y, x.shape[0], x.shape[1])
        return y
