"""Reading scattered elements of a process, and which of them look unlike; whole judgements are in redteam/."""

from __future__ import annotations

import os

import numpy as np
import pytest
import torch

from sandbox.judge.arena import MemoryAccessError, read_elements
from sandbox.judge.compare import Expected, compare_tensor
from sandbox.judge.placement import leaf_of
from sandbox.judge.spots import _addresses, _look_alike, with_found


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.int64, torch.bool])
def test_elements_are_read_where_the_strides_put_them(dtype: torch.dtype) -> None:
    tensor = torch.arange(5 * 7 * 9).reshape(5, 7, 9).to(dtype).permute(2, 0, 1)[1:, :, ::2]
    places = np.random.default_rng(0).integers(0, tensor.numel(), 3000)  # more than one system call takes
    leaf = leaf_of(tensor)
    data = read_elements(os.getpid(), _addresses(leaf, places, tensor.element_size()), tensor.element_size())
    wanted = tensor.reshape(-1)[torch.from_numpy(places)].numpy()
    np.testing.assert_array_equal(np.frombuffer(data, wanted.dtype), wanted)


def test_a_scalar_and_an_empty_tensor_have_places_too() -> None:
    scalar = torch.tensor(2.5)
    data = read_elements(os.getpid(), _addresses(leaf_of(scalar), np.zeros(1, int), 4), 4)
    assert np.frombuffer(data, np.float32).tolist() == [2.5]
    assert len(_addresses(leaf_of(torch.zeros(3, 0)), np.zeros(0, int), 4)) == 0


def test_memory_that_is_not_there_is_an_error() -> None:
    with pytest.raises(MemoryAccessError, match="2 elements from 0x10"):
        read_elements(os.getpid(), np.array([16, 32], np.uint64), 4)
    assert read_elements(os.getpid(), np.zeros(0, np.uint64), 4) == b""


def test_errors_of_both_sides_look_alike_and_skipped_work_does_not() -> None:
    wanted = np.random.default_rng(0).normal(size=64).astype(np.float32)
    assert _look_alike(wanted, wanted * np.float32(1 + 1e-4))
    assert not _look_alike(wanted, np.where(np.arange(64) == 5, np.float32(0.5) + wanted, wanted))
    special = np.array([np.nan, np.inf, -np.inf, 1.0], np.float32)
    assert _look_alike(special, special.copy())
    assert not _look_alike(special, np.array([0.0, np.inf, -np.inf, 1.0], np.float32))
    assert not _look_alike(special, np.array([np.nan, -np.inf, -np.inf, 1.0], np.float32))
    assert _look_alike(np.zeros(0, np.float32), np.zeros(0, np.float32))
    assert not _look_alike(np.array([1, 2]), np.array([1, 3]))


def test_what_was_found_is_judged_with_the_whole_answer_around_it() -> None:
    exact = np.random.default_rng(0).normal(size=(8, 8))
    expected = Expected(dtype="float32", eager=None, exact=exact)
    places = np.array([3, 60, 3])
    right = with_found(expected, places, exact.reshape(-1)[places].astype(np.float32))
    assert compare_tensor(expected, right, "hardened")[0] == ""
    wrong = with_found(expected, places, np.zeros(3, np.float32))
    assert "2 of 64 elements differ; first at [0, 3]" in compare_tensor(expected, wrong, "hardened")[0]
    whole = Expected(dtype="int64", eager=np.arange(6), exact=None, unstable=np.arange(6) == 2)
    assert compare_tensor(whole, with_found(whole, np.array([2]), np.array([9])), "hardened")[0] == ""
    assert "1 of 6" in compare_tensor(whole, with_found(whole, np.array([4]), np.array([9])), "hardened")[0]
