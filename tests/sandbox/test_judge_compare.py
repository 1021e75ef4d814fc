"""The comparison against a slow obvious one, and the special values."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sandbox.judge.compare import Expected, compare_structure, compare_tensor


def expected(values, dtype="float32", **kwargs) -> Expected:
    exact = np.asarray(values, dtype=np.float64)
    return Expected(dtype=dtype, eager=None, exact=exact, **kwargs)


def obvious(reference: np.ndarray, y: np.ndarray, tolerance: float) -> bool:
    finite = [v for v in reference.ravel() if np.isfinite(v)]
    scale = np.sqrt(sum(v * v for v in finite) / len(finite)) if finite else 0.0
    for want, got in zip(reference.ravel(), y.ravel(), strict=True):
        if np.isnan(want) or np.isnan(got):
            if not (np.isnan(want) and np.isnan(got)):
                return False
        elif np.isinf(want) or np.isinf(got):
            if want != got:
                return False
        elif abs(got - want) > tolerance * (abs(want) + scale):
            return False
    return True


values = st.one_of(st.floats(-1e3, 1e3, width=32), st.sampled_from([0.0, np.nan, np.inf, -np.inf]))


@settings(max_examples=200, deadline=None)
@given(
    st.lists(values, min_size=1, max_size=40),
    st.sampled_from([0.0, 5e-5, 3e-4, 1.0]),
    st.integers(0, 39),
    st.sampled_from([None, np.nan, np.inf, 0.0]),
)
def test_hardened_comparison_equals_the_obvious_loop(reference, noise, index, replacement):
    reference = np.array(reference, dtype=np.float64)
    with np.errstate(invalid="ignore"):
        y = (reference * (1 + noise)).astype(np.float32)
    if replacement is not None:
        y[index % y.size] = replacement
    message, _ = compare_tensor(expected(reference), y, "hardened")
    assert (message == "") == obvious(reference, y, 1e-4)


def test_blocks_do_not_change_the_answer():
    rng = np.random.default_rng(0)
    reference = rng.normal(size=(3, 50_000))
    y = reference.astype(np.float32)
    message, largest = compare_tensor(expected(reference), y, "hardened")
    assert message == "" and 0 < largest < 1e-6
    y[2, 49_999] += 0.01
    message, largest = compare_tensor(expected(reference), y, "hardened")
    assert message.startswith("1 of 150,000 elements differ; first at [2, 49999]") and largest == pytest.approx(
        0.01, rel=1e-3
    )


def test_a_mismatch_names_the_first_index_both_values_and_the_allowed_error():
    message, largest = compare_tensor(
        expected([[1.0, 2.0], [3.0, 4.0]]), np.array([[1, 2], [3.5, 5]], np.float32), "hardened"
    )
    assert (
        message
        == "2 of 4 elements differ; first at [1, 0]: got 3.5, expected 3 (allowed error 0.00057); largest error 1"
    )
    assert largest == 1.0


def test_an_honest_matrix_product_passes_where_plain_allclose_fails():
    rng = np.random.default_rng(1)
    a, b = rng.normal(size=(64, 4096)) * 3, rng.normal(size=(4096, 64)) * 3
    exact = a.astype(np.float32).astype(np.float64) @ b.astype(np.float32).astype(np.float64)
    y = a.astype(np.float32) @ b.astype(np.float32)
    assert compare_tensor(expected(exact), y, "hardened")[0] == ""


def test_paper_tolerance_is_absolute_and_wider():
    reference = np.full(10, 1e-3, np.float32)
    paper = Expected(dtype="float32", eager=reference, exact=None)
    assert compare_tensor(paper, np.zeros(10, np.float32), "paper")[0] == ""
    assert compare_tensor(expected(reference), np.zeros(10, np.float32), "hardened")[0] != ""


def test_integers_are_exact_except_where_the_reference_itself_is_unstable():
    eager = np.array([3, 4, 5])
    assert compare_tensor(Expected(dtype="int64", eager=eager, exact=None), np.array([3, 4, 5]), "hardened")[0] == ""
    message, error = compare_tensor(Expected(dtype="int64", eager=eager, exact=None), np.array([3, 9, 5]), "hardened")
    assert "first at [1]: got 9, expected 4" in message and error is None
    loose = Expected(dtype="int64", eager=eager, exact=None, unstable=np.array([False, True, False]))
    assert compare_tensor(loose, np.array([3, 9, 5]), "hardened")[0] == ""


def test_an_ill_conditioned_task_allows_twice_the_error_of_eager():
    exact, eager = np.ones(8), np.full(8, 1.01, np.float32)
    shaky = Expected(dtype="float32", eager=eager, exact=exact)
    assert compare_tensor(shaky, np.full(8, 0.985, np.float32), "hardened")[0] == ""
    assert compare_tensor(shaky, np.full(8, 0.97, np.float32), "hardened")[0] != ""


def node(kind, value):
    return {"kind": kind, "value": value}


@pytest.mark.parametrize(
    ("want", "got", "words"),
    [
        (node("tuple", [node("none", None)]), node("list", [node("none", None)]), ""),
        (node("tensor", 0), node("none", None), "output must be a tensor, got a none"),
        (node("tuple", [node("tensor", 0)] * 2), node("tensor", 0), "must be a tuple of 2"),
        (
            node("dict", [["a", node("int", 1)]]),
            node("dict", [["a", node("int", 1)], ["b", node("int", 2)]]),
            "must have the keys ['a']",
        ),
        (node("float", "nan"), node("float", "nan"), ""),
        (node("float", "1.0"), node("float", "1.00001"), ""),
        (node("float", "1.0"), node("float", "1.1"), "output must be 1.0, got 1.1"),
        (node("int", 2), node("float", "2.0"), "output must be 2.0"),
        (node("bool", True), node("bool", False), "must be True"),
        (node("tensor", 0), node("other", "Lazy"), "got a Lazy"),
    ],
)
def test_structures_are_compared_leaf_by_leaf(want, got, words):
    message = compare_structure(want, got)
    assert (words in message) if words else message == ""
