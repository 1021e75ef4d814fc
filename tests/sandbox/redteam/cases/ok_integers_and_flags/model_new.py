import torch
import torch.nn as nn
import cpp_kernels


class ModelNew(nn.Module):
    def __init__(self, words: int, width: int) -> None:
        super().__init__()
        self.table = nn.Embedding(words, width)

    def forward(self, index, keep, hashes, scale, nothing):
        rows = torch.empty(index.numel(), self.table.embedding_dim)
        cpp_kernels.rows_of(self.table.weight, index, keep, rows, rows.shape[0], rows.shape[1], scale)
        squares = torch.empty_like(hashes)
        cpp_kernels.squares(hashes, squares, hashes.numel(), nothing)
        return rows, squares
