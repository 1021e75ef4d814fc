"""Outputs of timed calls: found by the arena's table, laid out as the checks saw them, and compared afterwards."""

from __future__ import annotations

from typing import Any

import numpy as np

from sandbox.judge.arena import span_bytes
from sandbox.judge.candidate_side import CandidateSide
from sandbox.judge.checks import Checker
from sandbox.judge.compare import compare_structure, compare_tensor
from sandbox.judge.oracle_side import Answer, OracleSide
from sandbox.judge.rejection import RejectedError
from sandbox.judge.sharing import refuse_shared_calls
from sandbox.judge.values import ITEMSIZE
from sandbox.judge.worker import numpy_dtype
from sandbox.types import Outcome

_PASSED_BEFORE = "the same code passed the checks, so look for work that is skipped, cached or unfinished"
_LAYOUT = ("dtype", "shape", "stride")


class TimedOutputs:
    """Of one candidate whose checks are done."""

    def __init__(self, oracle: OracleSide, candidate: CandidateSide, checks: Checker) -> None:
        self._oracle = oracle
        self._candidate = candidate
        self._kept = checks.kept
        self.leaves = checks.leaves
        """Shapes, types and strides of a call's outputs, as the checks saw them."""
        self.has_values = checks.has_values
        """There are plain numbers among them."""

    def snapshot(self, chosen: int, num_calls: int) -> list[np.ndarray]:
        """Output tensors of one call of a timed batch; the candidate is stopped, as the clock left it.

        Their addresses come from the arena's table, their layout from the checks: the candidate's process says
        nothing in between.
        """
        leaves = self.of_batch(num_calls)[chosen]
        if self._candidate.device == "cuda":
            leaves = self._copied_out(leaves, self._candidate.collect(chosen))
        return [self._candidate.read_leaf(leaf) for leaf in leaves]

    def of_batch(self, num_calls: int) -> list[list[dict[str, Any]]]:
        """Where the outputs of each call of a batch lie, by the arena's table; no two calls may share memory."""
        count = len(self.leaves)
        table = np.frombuffer(self._candidate.worker.arena.memory, dtype=np.uint64)  # type: ignore[union-attr]
        addresses = table[: num_calls * count].reshape(num_calls, count)
        spans = [span_bytes(leaf, ITEMSIZE[leaf["dtype"]]) for leaf in self.leaves]
        refuse_shared_calls(addresses, spans, self._candidate, self._kept)
        return [
            [leaf | {"address": int(address)} for leaf, address in zip(self.leaves, row, strict=True)]
            for row in addresses
        ]

    @property
    def num_bytes(self) -> int:
        """Memory that one call's outputs take."""
        return sum(span_bytes(leaf, ITEMSIZE[leaf["dtype"]]) for leaf in self.leaves)

    def compare(self, arrays: list[np.ndarray], answer: Answer) -> None:
        """Raises RejectedError where outputs of a timed call are not the reference's answer to the same inputs."""
        for index, array in enumerate(arrays):
            if self._agrees(array, answer, index):
                continue
            difference, _ = compare_tensor(answer.outputs[index], array, self._candidate.protocol)  # type: ignore[arg-type]
            if difference:
                raise RejectedError(
                    Outcome.WRONG,
                    f"a timed call: output {index}: {difference}; {_PASSED_BEFORE}",
                )

    def node(self, chosen: int, num_calls: int) -> dict[str, Any]:
        """One call's output as the candidate's process describes it, numbers and all; it is stopped again after."""
        described = self._candidate.describe()
        self._candidate.worker.stop()
        if len(described) != num_calls:
            raise RejectedError(Outcome.REFUSED, "the candidate's process does not keep to the protocol")
        return described[chosen]["node"]

    def compare_node(self, node: dict[str, Any], answer: Answer) -> None:
        """As `compare`, of numbers."""
        difference = compare_structure(answer.node, node)
        if difference:
            raise RejectedError(Outcome.WRONG, f"a timed call: {difference}; {_PASSED_BEFORE}")

    def _copied_out(self, expected: list[dict[str, Any]], found: list[dict[str, Any]]) -> list[dict[str, Any]]:
        """What a timed call returned, as it was copied out: laid out as in the checks, from where the table says."""
        try:
            same = [
                leaf["device_address"] == wanted["address"] and all(leaf[key] == wanted[key] for key in _LAYOUT)
                for leaf, wanted in zip(found, expected, strict=True)
            ]
        except (KeyError, TypeError, ValueError):
            same = [False]
        if not all(same):
            raise RejectedError(
                Outcome.WRONG, "a timed call returned other shapes, types or strides than the checks saw"
            )
        return found

    def _agrees(self, array: np.ndarray, answer: Answer, index: int) -> bool:
        """Whether the oracle, which has a GPU, finds an output right; False also where it cannot say."""
        dtype, shape = answer.types[index]
        if self._candidate.protocol == "paper" or array.dtype != numpy_dtype(dtype) or array.shape != shape:
            return False
        dense = np.ascontiguousarray(array).reshape(-1).view(np.uint8)
        strides = [int(np.prod(shape[axis + 1 :], dtype=np.int64)) for axis in range(len(shape))]
        leaf = {"dtype": dtype, "shape": list(shape), "stride": strides}

        def write(memory: Any, offset: int) -> None:
            np.frombuffer(memory, dtype=np.uint8)[offset : offset + len(dense)] = dense

        return self._oracle.agrees(answer, index, leaf, write) is not None
