"""Contents of inputs that no earlier call has seen."""

from __future__ import annotations

import numpy as np
import pytest

from sandbox.judge.fresh import Mixer


@pytest.mark.parametrize("dtype", ["float16", "float32", "float64", "complex128"])
def test_mixtures_take_each_element_from_one_of_two_draws_at_its_place(dtype: str) -> None:
    drawn = np.random.default_rng(0).standard_normal((2, 33, 65)).astype(dtype)
    mixtures, mixer = [], Mixer()
    for _ in range(2):
        mixed = bytearray(drawn[0].nbytes)
        mixer.mix(memoryview(mixed), *(bytearray(one.tobytes()) for one in drawn), drawn.itemsize)
        mixtures.append(np.frombuffer(mixed, dtype=dtype).reshape(33, 65))
    for mixed in mixtures:
        first, second = mixed == drawn[0], mixed == drawn[1]
        assert (first | second).all() and 0.4 < second.mean() < 0.6
        assert not first.all(axis=1).any() and not second.all(axis=1).any()  # no row is one that was seen
    assert (mixtures[0] != mixtures[1]).any(axis=1).all()
