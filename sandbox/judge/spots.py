"""A few elements of every timed call's outputs, against eager's outputs for the same inputs.

Two timed calls of a judgement are compared in full. A candidate that leaves out one call in twenty is five percent
faster and passes that nineteen times in twenty; here it does not. Eager is timed on the same inputs anyway, so looking
costs no computation: elements at random places are read out of both processes. Where they differ, the call is answered
in float64 and judged by the same tolerance as all others, so nothing is refused because of eager's own errors.
"""

from __future__ import annotations

import base64
from dataclasses import dataclass
from typing import Any

import numpy as np

from sandbox.judge.arena import MemoryAccessError, read_elements
from sandbox.judge.candidate_side import CandidateSide
from sandbox.judge.compare import TOLERANCE, Expected
from sandbox.judge.oracle_side import Answer, OracleSide
from sandbox.judge.values import ITEMSIZE
from sandbox.judge.worker import numpy_dtype, widen

_PLACES = 64
"""Elements of an output that are looked at, a call."""
_MAX_PLACES = 8192
"""Of a batch: on a GPU they and what lies there are parts of messages."""
_MAX_SUSPECTS = 4
"""Calls that are answered in float64, a judgement."""
_SLACK = 4.0
"""Times the tolerance: eager may be off by as much as the candidate."""
Places = list[np.ndarray]
Values = list[np.ndarray]


@dataclass(slots=True)
class Suspect:
    """A call whose outputs look unlike eager's: its inputs in the oracle, and what was found where."""

    key: int
    places: Places
    values: Values


class SpotChecks:
    """Of one judgement. A round is `begin`, then `candidate` and `eager` in either order, then `end`."""

    def __init__(self, oracle: OracleSide, candidate: CandidateSide) -> None:
        self._oracle = oracle
        self._candidate = candidate
        self._leaves: list[dict[str, Any]] = []
        self._places: dict[int, Places] = {}
        self._found: dict[str, dict[int, Values]] = {}
        self.suspects: list[Suspect] = []
        self.num_calls = 0
        """Calls that were compared."""

    def begin(self, slots: list[int], leaves: list[dict[str, Any]]) -> None:
        """`slots` name the calls of this round; `leaves` are the shapes of one call's outputs."""
        sizes = [int(np.prod(leaf["shape"], dtype=np.int64)) for leaf in leaves]
        most = max(1, min(_PLACES, _MAX_PLACES // max(1, len(slots) * len(leaves))))
        self._leaves = leaves
        self._places = {
            slot: [np.random.randint(0, size, min(size, most)) if size else np.zeros(0, int) for size in sizes]
            for slot in slots
        }
        self._found = {}

    def candidate(self, slots: list[int], outputs: list[list[dict[str, Any]]]) -> None:
        """Reads the candidate's outputs, which lie as `outputs` says. Raises MemoryAccessError."""
        if self._candidate.device == "cuda":
            self._found["candidate"] = self._gathered(slots, self._candidate.gather(self._places_of(slots)))
        else:
            self._found["candidate"] = self._read(self._candidate.worker.pid, slots, outputs)

    def eager(self, slots: list[int]) -> None:
        """Reads eager's outputs of the batch that it has just run."""
        if self._oracle.device == "cuda":
            reply = self._oracle.ask({"op": "gather", "places": self._places_of(slots)})
            self._found["eager"] = self._gathered(slots, reply)
            return
        described = self._oracle.ask({"op": "describe"})["outputs"]
        self._found["eager"] = self._read(self._oracle.worker.pid, slots, [call["leaves"] for call in described])

    def end(self) -> None:
        """Compares, and keeps the inputs of calls that look wrong."""
        wanted, got = self._found["eager"], self._found["candidate"]
        for slot in wanted.keys() & got.keys():
            self.num_calls += 1
            if len(self.suspects) < _MAX_SUSPECTS and not all(map(_look_alike, wanted[slot], got[slot])):
                self.suspects.append(Suspect(self._oracle.adopt(slot), self._places[slot], got[slot]))

    def _places_of(self, slots: list[int]) -> list[list[list[int]]]:
        return [[place.tolist() for place in self._places[slot]] for slot in slots]

    def _gathered(self, slots: list[int], reply: dict[str, Any]) -> dict[int, Values]:
        """What a GPU's worker read out for us. Raises MemoryAccessError where it is not what was asked for."""
        try:
            data = base64.b64decode(reply["data"], validate=True)
        except (KeyError, TypeError, ValueError) as error:
            raise MemoryAccessError("the process does not keep to the protocol") from error
        found: dict[int, Values] = {slot: [] for slot in slots}
        start = 0
        for slot in slots:
            for leaf, places in zip(self._leaves, self._places[slot], strict=True):
                end = start + len(places) * ITEMSIZE[leaf["dtype"]]
                if end > len(data):
                    raise MemoryAccessError("a timed call returned another type than before")
                values = np.frombuffer(data[start:end], dtype=numpy_dtype(leaf["dtype"]))
                found[slot].append(widen(values, leaf["dtype"]))
                start = end
        return found

    def _read(self, pid: int, slots: list[int], outputs: list[list[dict[str, Any]]]) -> dict[int, Values]:
        found: dict[int, Values] = {slot: [] for slot in slots}
        for index in range(len(outputs[0]) if outputs else 0):
            leaves = [output[index] for output in outputs]
            dtype, itemsize = numpy_dtype(leaves[0]["dtype"]), ITEMSIZE[leaves[0]["dtype"]]
            places = [self._places[slot][index] for slot in slots]
            addresses = [_addresses(leaf, place, itemsize) for leaf, place in zip(leaves, places, strict=True)]
            flat = np.frombuffer(read_elements(pid, np.concatenate(addresses), itemsize), dtype=dtype)
            parts = np.split(widen(flat, leaves[0]["dtype"]), np.cumsum([len(place) for place in places])[:-1])
            for slot, part in zip(slots, parts, strict=True):
                found[slot].append(part)
        return found


def with_found(expected: Expected, places: np.ndarray, values: np.ndarray) -> np.ndarray:
    """The reference's answer with what was found put in its places: what compare_tensor is given."""
    reference = expected.exact if expected.exact is not None else expected.eager
    assert reference is not None
    array = np.array(reference if np.issubdtype(reference.dtype, np.inexact) else expected.eager)
    array.reshape(-1)[places] = values
    return array


def suspect_arrays(suspect: Suspect, answer: Answer) -> list[np.ndarray]:
    return [
        with_found(expected, places, values)
        for expected, places, values in zip(answer.outputs, suspect.places, suspect.values, strict=True)
    ]


def _addresses(leaf: dict[str, Any], places: np.ndarray, itemsize: int) -> np.ndarray:
    if not leaf["shape"] or not len(places):  # a scalar's only element is its first
        return np.full(len(places), leaf["address"], np.uint64)
    position = np.unravel_index(places, leaf["shape"])
    offset = sum((part * step for part, step in zip(position, leaf["stride"], strict=True)), np.zeros_like(places))
    return (offset * itemsize).astype(np.uint64) + np.uint64(leaf["address"])


def _look_alike(wanted: np.ndarray, got: np.ndarray) -> bool:
    if not np.issubdtype(wanted.dtype, np.inexact):
        return bool(np.array_equal(wanted, got))
    wide = np.complex128 if np.iscomplexobj(wanted) else np.float64
    a, b = wanted.astype(wide), got.astype(wide)
    finite = np.isfinite(a) & np.isfinite(b)
    tolerance = _SLACK * TOLERANCE.get(str(wanted.dtype), 1e-4)
    with np.errstate(invalid="ignore", over="ignore"):
        scale = np.sqrt(np.mean(np.square(np.abs(a[finite])))) if finite.any() else 0.0
        close = np.abs(a - b) <= tolerance * (np.abs(a) + scale)
        special = (np.isnan(a) & np.isnan(b)) | (a == b)
    return bool(np.where(finite, close, special).all())
