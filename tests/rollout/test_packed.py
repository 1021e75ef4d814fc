"""Weights packed into one buffer: their checksum, and what a writer refuses."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from rollout.packages import WeightsError
from rollout.packed import BLOCK_BYTES, checksum, views
from rollout.packed_writer import PackedWriter


def test_the_checksum_sees_a_bit_and_an_exchange_and_is_the_same_in_any_order() -> None:
    rng = np.random.default_rng(0)
    data = torch.from_numpy(rng.integers(0, 256, 64 * BLOCK_BYTES, np.uint8))
    sums = {checksum(data)}
    for bit in (0, 7, 8 * 5000 + 3, 8 * (data.numel() - 1)):
        changed = data.clone()
        changed[bit // 8] ^= 1 << (bit % 8)
        sums.add(checksum(changed))
    words = data.view(torch.int64)
    for one, other in ((0, 1), (0, BLOCK_BYTES // 8), (5, 20_000)):
        exchanged = words.clone()
        exchanged[[one, other]] = exchanged[[other, one]]
        sums.add(checksum(exchanged.view(torch.uint8)))
    assert len(sums) == 8
    value = [0, 0]
    for index, word in enumerate(words.tolist()):
        for axis, place in enumerate(divmod(index, BLOCK_BYTES // 8)):
            value[axis] += word * (((place + 1) * (0x9E3779B97F4A7C15 - 2**64)) | 1)
    assert checksum(data) == "".join(f"{number % 2**64:016x}" for number in value)


def named(**shapes: tuple[int, ...]) -> list[tuple[str, torch.Tensor]]:
    generator = torch.Generator().manual_seed(0)
    return [(name, torch.randn(shape, generator=generator)) for name, shape in shapes.items()]


def test_a_package_holds_the_tensors_in_the_dtype_asked_for_and_the_unchanging_ones_once() -> None:
    writer = PackedWriter(torch.device("cpu"), dtype="bfloat16", host="127.0.0.1")
    changing, fixed, times = named(a=(33, 7), b=(5,)), named(c=(300, 20)), 0

    def unchanging() -> list[tuple[str, torch.Tensor]]:
        nonlocal times
        times += 1
        return fixed

    packages = [writer.write(lambda: changing, version=version, unchanging=unchanging) for version in range(5)]
    assert times == 3  # to lay it out, and once for each of two buffers
    assert len({package.checksum for package in packages}) == 1 and len({package.base for package in packages}) == 1
    assert packages[0].layout() == {"a": (33, 7), "b": (5,), "c": (300, 20)}
    for buffer in writer._buffers:
        parts = packages[0].parts
        stored = [pair for part in parts for pair in views(buffer.data[part.offset :][: part.num_bytes], part.tensors)]
        for (name, tensor), (expected_name, expected) in zip(stored, [*changing, *fixed], strict=True):
            assert name == expected_name and torch.equal(tensor, expected.to(torch.bfloat16))
    assert writer.write(lambda: named(a=(33, 7), b=(5,))[::-1], version=9).checksum == packages[0].checksum
    writer.close()


@pytest.mark.parametrize(
    ("tensors", "message"),
    [
        (named(a=(2, 3)), "1 weights of the first version are missing now, such as b"),
        (named(a=(2, 3), b=(5,)), "b of shape .5,. was not among .* another shape: .4,."),
        (named(a=(2, 3), b=(4,), c=(1,)), "c of shape .1,. was not among the first"),
    ],
)
def test_a_version_with_other_weights_than_the_first_is_refused(tensors, message: str) -> None:
    writer = PackedWriter(torch.device("cpu"), host="127.0.0.1")
    writer.write(lambda: named(a=(2, 3), b=(4,)), version=0)
    with pytest.raises(WeightsError, match=message):
        writer.write(lambda: tensors, version=1)
    writer.close()


def test_what_cannot_be_packed_or_shown_says_so() -> None:
    with pytest.raises(WeightsError, match="memory of cpu cannot be shown to another process"):
        PackedWriter(torch.device("cpu"))
    writer = PackedWriter(torch.device("cpu"), host="127.0.0.1")
    with pytest.raises(WeightsError, match="the iterator of named tensors was empty"):
        writer.write(lambda: [], version=0)
    with pytest.raises(WeightsError, match="weights of dtype 'int64' cannot be packed; possible are float32"):
        writer.write(lambda: [("a", torch.arange(4))], version=0)
    writer.close()
