import torch
import torch.nn as nn
import cpp_kernels


class ModelNew(nn.Module):
    def forward(self, x):
        rows, columns = x.shape
        total = torch.empty(())
        top = torch.empty(rows)
        where = torch.empty(rows, dtype=torch.int64)
        positive = torch.empty(x.shape, dtype=torch.bool)
        half = torch.empty(x.shape, dtype=torch.float16)
        brain = torch.empty(x.shape, dtype=torch.bfloat16)
        wide = torch.empty(x.shape, dtype=torch.float64)
        small = torch.empty(x.shape, dtype=torch.int8)
        turned = torch.empty(x.shape, dtype=torch.complex64)
        cpp_kernels.everything(
            x, total, top, where, positive, half, brain, wide, small, torch.view_as_real(turned), rows, columns
        )
        return {
            "sum": total,
            "top": (top, where),
            "positive": positive,
            "half": half,
            "brain": brain,
            "wide": wide,
            "small": small,
            "turned": turned,
            "none": None,
            "rest": [torch.empty(0, columns), 3, "rows", True, 0.5],
        }
