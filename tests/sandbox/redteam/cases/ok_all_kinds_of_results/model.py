import torch
import torch.nn as nn


class Model(nn.Module):
    def forward(self, x):
        top, where = x.max(dim=1)
        return {
            "sum": x.sum(),
            "top": (top, where),
            "positive": x > 0,
            "half": x.half(),
            "brain": x.bfloat16(),
            "wide": x.double() * 0.1,
            "small": (x * 10).to(torch.int8),
            "turned": torch.complex(x, -x),
            "none": None,
            "rest": [x[:0], 3, "rows", True, 0.5],
        }


def get_inputs():
    return [torch.randn(64, 96)]


def get_init_inputs():
    return []
