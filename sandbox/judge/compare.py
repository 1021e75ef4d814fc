"""Does a candidate's output equal the reference's? NumPy only; runs in the supervisor.

hardened:  |y - y64| <= tolerance * (|y64| + RMS(y64)), tolerance 1e-4 for float32 and 1e-2 for half precision.
           Plain allclose at 1e-4 would reject honest matrix products, whose error goes with the scale of the output.
paper:     |y - y32| <= 1e-2 + 1e-2 * |y32|.

NaN and infinities must stand at the same positions; integers and bools must agree exactly, except where the
reference's own answer changes under a relative jitter of 1e-6.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Literal

import numpy as np

Protocol = Literal["hardened", "paper"]
TOLERANCE = {"float64": 1e-4, "float32": 1e-4, "float16": 1e-2, "bfloat16": 1e-2, "complex64": 1e-4, "complex128": 1e-4}
PAPER_TOLERANCE = 1e-2
_BLOCK = 1 << 15


@dataclass(slots=True, kw_only=True)
class Expected:
    """One output tensor of the reference."""

    dtype: str
    eager: np.ndarray | None
    """Present for integers, and for floats without a float64 answer or whose eager answer misses the tolerance."""
    exact: np.ndarray | None
    """float64 answer."""
    unstable: np.ndarray | None = None
    """True where an integer answer hangs on rounding."""

    @property
    def shape(self) -> tuple[int, ...]:
        array = self.exact if self.exact is not None else self.eager
        assert array is not None
        return array.shape


@dataclass(slots=True)
class Comparison:
    """`message` is empty where everything agrees."""

    message: str = ""
    max_errors: list[float] = field(default_factory=list)
    """Largest |y - reference| of each float output, over positions where both are finite."""


def compare_structure(expected: dict[str, Any], actual: dict[str, Any], path: str = "output") -> str:
    """Compares nodes (see values.py) and scalars in them; "" where they agree. Tuples and lists are one."""
    kinds = {"tuple": "sequence", "list": "sequence", "int": "number", "float": "number"}
    want, got = (kinds.get(node["kind"], node["kind"]) for node in (expected, actual))
    if want != got:
        return f"{path} must be a {_kind(expected)}, got a {_kind(actual)}"
    if want == "sequence":
        if len(expected["value"]) != len(actual["value"]):
            return f"{path} must have {len(expected['value'])} items, got {len(actual['value'])}"
        items = zip(expected["value"], actual["value"], strict=True)
        return next((text for i, (a, b) in enumerate(items) if (text := compare_structure(a, b, f"{path}[{i}]"))), "")
    if want == "dict":
        wanted, found = dict(expected["value"]), dict(actual["value"])
        if wanted.keys() != found.keys():
            return f"{path} must have the keys {sorted(wanted)}, got {sorted(found)}"
        return next(
            (text for key in wanted if (text := compare_structure(wanted[key], found[key], f"{path}[{key!r}]"))), ""
        )
    if want == "number":
        a, b = float(expected["value"]), float(actual["value"])
        same = a == b or (a != a and b != b) or abs(a - b) <= TOLERANCE["float32"] * abs(a)
        return "" if same and expected["kind"] == actual["kind"] else f"{path} must be {a}, got {b}"
    if want in ("bool", "str") and expected["value"] != actual["value"]:
        return f"{path} must be {expected['value']!r}, got {actual['value']!r}"
    return ""


def compare_tensor(expected: Expected, actual: np.ndarray, protocol: Protocol) -> tuple[str, float | None]:
    """Why they differ ("" where they do not), and the largest error of a float output."""
    if expected.dtype not in TOLERANCE:
        assert expected.eager is not None
        return _compare_exact(expected, actual), None
    if protocol == "paper":
        reference, bound_of = expected.eager, lambda y: PAPER_TOLERANCE + PAPER_TOLERANCE * np.abs(y)
    else:
        tolerance = TOLERANCE[expected.dtype]
        reference = expected.exact if expected.exact is not None else expected.eager
        bound_of = lambda y: tolerance * (np.abs(y) + _rms(y))  # noqa: E731
    assert reference is not None
    wide = np.complex128 if np.iscomplexobj(reference) else np.float64
    if protocol == "hardened" and expected.eager is None and wide is np.float64:
        largest = _fast_close(actual, reference, TOLERANCE[expected.dtype])
        if largest is not None:
            return "", largest
    y, reference = actual.astype(wide, copy=False), reference.astype(wide, copy=False)
    with np.errstate(invalid="ignore", over="ignore"):
        error = np.abs(y - reference)
        bound = bound_of(reference)
        if protocol == "hardened" and expected.exact is not None and expected.eager is not None:
            bound = bound + 2 * np.abs(expected.eager.astype(wide) - reference)  # an ill-conditioned task
        special = ~(np.isfinite(reference) & np.isfinite(y))
        wrong = np.where(special, ~_same_special(y, reference), ~(error <= bound))
    finite = error[np.isfinite(error)]
    largest = float(finite.max(initial=0.0))
    if not wrong.any():
        return "", largest
    return _mismatch(wrong, y, reference, bound, largest), largest


def _fast_close(actual: np.ndarray, reference: np.ndarray, tolerance: float) -> float | None:
    """Largest error where all is finite and within the hardened tolerance, else None: a closer look is needed.

    Goes over the arrays in blocks that fit a cache; whole-array temporaries cost several times as much.
    """
    if not actual.flags.c_contiguous or not reference.flags.c_contiguous or reference.dtype != np.float64:
        return None
    y, wanted = actual.reshape(-1), reference.reshape(-1)
    squares = np.einsum("i,i->", wanted, wanted)  # np.dot would wake the threads of a BLAS
    if not np.isfinite(squares):
        return None
    floor, largest = float(np.sqrt(squares / max(1, wanted.size))), 0.0
    error, bound = np.empty(_BLOCK), np.empty(_BLOCK)
    for start in range(0, wanted.size, _BLOCK):
        part = wanted[start : start + _BLOCK]
        e, b = error[: part.size], bound[: part.size]
        np.subtract(y[start : start + _BLOCK], part, out=e)
        np.abs(e, out=e)
        np.abs(part, out=b)
        b += floor
        b *= tolerance
        b -= e
        if not b.min() >= 0:  # also where NaN
            return None
        largest = max(largest, float(e.max()))
    return largest


def _compare_exact(expected: Expected, actual: np.ndarray) -> str:
    assert expected.eager is not None
    wrong = actual != expected.eager
    if expected.unstable is not None and wrong.any():
        wrong = wrong & ~expected.unstable
    return _mismatch(wrong, actual, expected.eager, None, None) if wrong.any() else ""


def _same_special(y: np.ndarray, reference: np.ndarray) -> np.ndarray:
    """True where the reference is NaN or infinite and y is the same."""
    return (np.isnan(y) & np.isnan(reference)) | (np.isinf(reference) & (y == reference))


def _rms(y: np.ndarray) -> float:
    """Root mean square of the finite values."""
    magnitude = np.abs(y)
    squares = np.einsum("i,i->", magnitude.ravel(), magnitude.ravel())
    if np.isfinite(squares):
        return float(np.sqrt(squares / max(1, y.size)))
    finite = magnitude[np.isfinite(magnitude)]
    if finite.size == 0:
        return 0.0
    scale = float(finite.max())
    return scale * float(np.sqrt(np.mean(np.square(finite / scale)))) if scale else 0.0


def _mismatch(wrong: np.ndarray, y: np.ndarray, reference: np.ndarray, bound: Any, largest: float | None) -> str:
    """What an author needs: how many, the first with both values, and the largest error."""
    first = np.unravel_index(int(np.argmax(wrong)), wrong.shape)
    count, where = int(np.count_nonzero(wrong)), [int(index) for index in first]
    text = (
        f"{count:,} of {wrong.size:,} elements differ; first at {where}: got {_value(y[first])}, "
        f"expected {_value(reference[first])}"
    )
    if bound is not None and np.isfinite(reference[first]):
        allowed = bound[first] if isinstance(bound, np.ndarray) else bound
        text += f" (allowed error {float(allowed):.2g})"
    if largest is not None:
        text += f"; largest error {largest:.3g}"
    return text


def _value(value: Any) -> str:
    return f"{value:.7g}" if isinstance(value, (float, np.floating)) else str(value)


def _kind(node: dict[str, Any]) -> str:
    if node["kind"] in ("tuple", "list"):
        return f"{node['kind']} of {len(node['value'])}"
    return str(node["value"]) if node["kind"] == "other" else node["kind"]
