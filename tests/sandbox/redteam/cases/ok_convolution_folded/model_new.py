import torch
import torch.nn as nn
import cpp_kernels


class ModelNew(nn.Module):
    def __init__(self, channels: int, outputs: int) -> None:
        super().__init__()
        self.conv = nn.Conv2d(channels, outputs, 3, padding=1)
        self.norm = nn.BatchNorm2d(outputs)

    def forward(self, x):
        batch, channels, height, width = x.shape
        norm, conv = self.norm, self.conv
        y = x.new_empty(batch, conv.out_channels, height, width)
        cpp_kernels.conv(
            x.contiguous(), conv.weight, conv.bias, norm.weight, norm.bias, norm.running_mean, norm.running_var, y,
            batch, channels, conv.out_channels, height, width, norm.eps,
        )
        return y
