"""Cross-entropy of every row with label smoothing, and a penalty on the log of the partition function."""

import torch
import torch.nn as nn


class Model(nn.Module):
    def __init__(self, smoothing, penalty):
        super().__init__()
        self.smoothing, self.penalty = smoothing, penalty

    def forward(self, logits, labels):
        partition = torch.logsumexp(logits, dim=-1)
        chosen = logits.gather(-1, labels[:, None]).squeeze(-1)
        loss = partition - (1 - self.smoothing) * chosen - self.smoothing * logits.mean(dim=-1)
        return loss + self.penalty * partition.square()


def get_inputs():
    return [torch.randn(2048, 8192), torch.randint(0, 8192, (2048,))]


def get_init_inputs():
    return [0.1, 1e-3]
