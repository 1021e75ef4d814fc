"""Which results of a batch share memory."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import pytest

from sandbox.judge.rejection import RejectedError
from sandbox.judge.sharing import refuse_shared_calls

CANDIDATE = SimpleNamespace(holds_inputs=lambda start, end: start >= 9000)


def refuse(rows: list[list[int]], spans: list[int], kept: list[tuple[int, int]] | None = None) -> None:
    refuse_shared_calls(np.array(rows, np.uint64), spans, CANDIDATE, kept or [])  # type: ignore[arg-type]


def is_refused(rows: list[list[int]], spans: list[int], kept: list[tuple[int, int]] | None = None) -> bool:
    try:
        refuse(rows, spans, kept)
    except RejectedError:
        return True
    return False


def test_separate_results_inputs_and_views_within_one_call_pass() -> None:
    assert not is_refused([[1000, 2000], [3000, 4000]], [1000, 1000])
    assert not is_refused([[1000, 1100], [3000, 3100]], [1000, 50])  # the second result is a part of the first
    assert not is_refused([[1000, 1000], [2000, 2000]], [1000, 1000])
    assert not is_refused([[9000, 1000], [9000, 2000]], [100, 1000])
    assert not is_refused([[1000, 1000], [1000, 1000]], [0, 0])


def test_results_that_are_still_held_are_not_written_again() -> None:
    assert not is_refused([[1000], [2000]], [1000], kept=[(3000, 4000), (3500, 3600)])
    assert is_refused([[1000], [2000]], [1000], kept=[(2999, 4000)])
    assert is_refused([[3999]], [10], kept=[(3000, 4000), (3500, 3600)])


@pytest.mark.parametrize(
    ("rows", "spans"),
    [
        ([[1000], [1000]], [8]),
        ([[1000], [1996]], [1000]),
        ([[1000, 5000], [3000, 5500]], [1000, 1000]),
        ([[1000, 1100], [2000, 1900]], [1000, 50]),
        ([[1000, 2000], [2000, 4000]], [1000, 1000]),
    ],
)
def test_results_of_two_calls_may_not_overlap(rows: list[list[int]], spans: list[int]) -> None:
    with pytest.raises(RejectedError, match="the same memory"):
        refuse(rows, spans)
