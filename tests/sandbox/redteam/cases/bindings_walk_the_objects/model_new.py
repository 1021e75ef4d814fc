import torch
import torch.nn as nn
import cpu_extension


class ModelNew(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        cpu_extension.open_up(self)

    def forward(self, a, b):
        return cpu_extension.run(self, a, b)
