import torch
import torch.nn as nn
import cpu_extension


class ModelNew(nn.Module):
    def __init__(self, scale: float) -> None:
        super().__init__()
        self.scale = scale

    def forward(self, x):
        y, rows = cpu_extension.chain(x, scale=self.scale)
        return y if rows == x.shape[0] else None
