"""Weights packed into one buffer on a device: where each tensor lies, and a checksum that both ends compute there."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import torch

from rollout.packages import BYTES_PER_ELEMENT, PackedTensor, WeightsError

BLOCK_BYTES = 8192
"""A part of a package begins and ends at a multiple of this; what no tensor fills is zero."""
_TENSOR_BYTES = 256  # alignment that any kernel is content with
_MASK = 2**64 - 1


def torch_dtype(name: str) -> torch.dtype:
    """Raises WeightsError for a dtype that no package holds."""
    if name not in BYTES_PER_ELEMENT:
        raise WeightsError(f"weights of dtype {name!r} cannot be packed; possible are {', '.join(BYTES_PER_ELEMENT)}")
    return getattr(torch, name)


def lay_out(tensors: Iterable[tuple[str, str, tuple[int, ...]]]) -> tuple[list[PackedTensor], int]:
    """(name, dtype, shape) one behind the other; also the bytes that they take, a multiple of BLOCK_BYTES."""
    placed: list[PackedTensor] = []
    end = 0
    for name, dtype, shape in tensors:
        torch_dtype(dtype)  # before anything is laid out that could not be packed
        placed.append(PackedTensor(name=name, dtype=dtype, shape=shape, offset=_round_up(end, _TENSOR_BYTES)))
        end = placed[-1].offset + placed[-1].num_bytes
    return placed, _round_up(end, BLOCK_BYTES)


def views(buffer: torch.Tensor, tensors: Iterable[PackedTensor]) -> Iterator[tuple[str, torch.Tensor]]:
    """The tensors within a part's bytes [N] uint8, nothing copied."""
    for tensor in tensors:
        flat = buffer[tensor.offset : tensor.offset + tensor.num_bytes].view(torch_dtype(tensor.dtype))
        yield tensor.name, flat.view(tuple(tensor.shape))


def checksum(buffer: torch.Tensor) -> str:
    """32 hexadecimal digits of bytes [N] uint8, N a multiple of BLOCK_BYTES; the same on every device.

    The bytes are a matrix of 64-bit words. Sums of its rows and of its columns, modulo 2^64 and so in any order, are
    added up with an odd factor for each row and column: a word that changes always changes both, and words that are
    exchanged change one. Read twice at memory speed, with nothing copied.
    """
    words = buffer.view(torch.int64).view(-1, BLOCK_BYTES // 8)
    parts = [words.sum(1), words.sum(0)]
    sums = torch.stack([(part * _odd_factors(len(part), part.device)).sum() for part in parts]).tolist()
    return "".join(f"{value & _MASK:016x}" for value in sums)


def _odd_factors(count: int, device: torch.device) -> torch.Tensor:
    """[count] int64: multiples of an odd constant (that of Fibonacci hashing), made odd."""
    golden = 0x9E3779B97F4A7C15 - 2**64
    return torch.arange(1, count + 1, dtype=torch.int64, device=device) * golden | 1


def _round_up(value: int, multiple: int) -> int:
    return -(-value // multiple) * multiple
