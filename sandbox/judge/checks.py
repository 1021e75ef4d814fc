"""Is the candidate correct? A series of batches of two calls, each compared with the reference.

paper      num_checks natural draws.
hardened   also: one-block changes of inputs seen before, equal inputs again after the first outputs were
           overwritten, weights edited in place between calls, and inputs transformed as far as the reference
           itself stays accurate on them.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from sandbox.judge.arena import MemoryAccessError, read_memory, span_bytes, write_memory
from sandbox.judge.candidate_side import CandidateSide
from sandbox.judge.compare import compare_structure, compare_tensor
from sandbox.judge.oracle_side import Answer, Draw, OracleSide
from sandbox.judge.rejection import RejectedError, check_leaf
from sandbox.judge.sharing import Block, refuse_shared_outputs
from sandbox.judge.values import ITEMSIZE
from sandbox.tasks import TaskError
from sandbox.types import Outcome

_OVERWRITE = 0x7F
_MAX_KEPT_BYTES = 256 << 20


@dataclass(slots=True)
class CheckReport:
    """What the checks found, for Judgement.details."""

    num_checks: int = 0
    max_errors: list[float] = field(default_factory=list)
    transforms: list[str] = field(default_factory=list)
    dropped_transforms: list[str] = field(default_factory=list)
    flags: list[str] = field(default_factory=list)

    def to_json(self) -> dict[str, Any]:
        return {
            "num_checks": self.num_checks,
            "max_errors": self.max_errors,
            "transforms": self.transforms,
            "dropped_transforms": self.dropped_transforms,
            "flags": self.flags,
        }


class Checker:
    """Runs the checks of one protocol over a session."""

    def __init__(
        self, oracle: OracleSide, candidate: CandidateSide, *, num_checks: int, give_way: Callable[[], None]
    ) -> None:
        """`give_way` is called where the candidate's process may be stopped for a while (Run.give_way)."""
        self._give_way = give_way
        self._oracle = oracle
        self._candidate = candidate
        self._num_checks = num_checks
        self._protocol = candidate.protocol
        self.report = CheckReport()
        self._index = 0
        self.leaves: list[dict[str, Any]] = []
        """Shapes, types and strides of a call's outputs, as the last check saw them."""
        self.kept: list[Block] = []
        """Memory of results that are held to the end: buffers that take turns come back to it, however many there
        are."""
        self.has_values = False
        """Some of an output are plain numbers, which lie in no memory that could be looked at."""
        self.mutates = False
        """The reference itself changes its inputs, so a candidate may."""
        self._first: list[Draw] = []
        """Inputs of the first batch."""

    def begin(self) -> None:
        """What does not need the candidate: on a CPU the reference answers the first inputs while ModelNew is built."""
        self._first = [self._natural(), self._natural()]
        if self._oracle.device == "cpu":
            for key, _ in self._first:
                self._oracle.ask_ahead(key, self._protocol)

    def run(self) -> CheckReport:
        """After `begin`. Raises RejectedError at the first check that fails."""
        if self._protocol == "paper":
            for start in range(0, self._num_checks, 2):
                count = min(2, self._num_checks - start)
                draws = [self._natural() for _ in range(count)] if start else self._first[:count]
                self._batch([("fresh inputs", draw) for draw in draws])
            return self.report
        slots = self._random_slots(2)
        first, second = self._first
        self._batch([("fresh inputs", first), ("fresh inputs", second)], slots=slots, overwrite=True)
        # into the storage of the last call, with its results destroyed: only a computation can be right
        self._batch([("the last inputs once more", second)], slots=slots[1:])
        block = self._oracle.draw("block", base=second[0])
        self._batch([("one block of the last inputs changed", block)], slots=slots[1:])
        self._oracle.forget([first[0], second[0], block[0]])
        if self._oracle.facts["weights"]:
            self.load_weights(perturb=True)
        remaining = [("fresh inputs", self._natural()) for _ in range(max(1, self._num_checks - 2))]
        remaining += self._transformed(base=remaining[-1][1][0])
        for start in range(0, len(remaining), 2):
            self._batch(remaining[start : start + 2])
            self._oracle.forget([key for _, (key, _) in remaining[start : start + 2]])
        return self.report

    def load_weights(self, *, perturb: bool) -> list[dict[str, Any]]:
        """Redraws the reference's weights and copies them into the candidate's arena, then into its parameters."""
        leaves = self.write_weights(perturb=perturb)
        self._candidate.ask({"op": "weights", "weights": leaves}, "copying new weights")
        return leaves

    def write_weights(self, *, perturb: bool) -> list[dict[str, Any]]:
        leaves = self._oracle.redraw_weights(perturb=perturb)
        memory = self._candidate.worker.arena.memory  # type: ignore[union-attr]
        for placed, leaf in zip(self._oracle.layout.weights, leaves, strict=True):
            read_memory(
                self._oracle.worker.pid,
                leaf["address"],
                memory,
                placed["offset"],
                span_bytes(leaf, ITEMSIZE[leaf["dtype"]]),
            )
        return self._oracle.layout.weights

    def _natural(self) -> Draw:
        return self._oracle.draw()

    def _transformed(self, base: int) -> list[tuple[str, Draw]]:
        """The transformed draws on which the reference runs, stays finite and meets the tolerance itself."""
        kept = []
        natural_finite = self._oracle.answer(base, self._protocol).finite
        for name in self._oracle.facts["transforms"]:
            self._give_way()
            draw = self._oracle.draw(name, base=base)
            answer = self._oracle.answer(draw[0], self._protocol)
            if (answer.finite or not natural_finite) and answer.meets_tolerance:
                kept.append((f"inputs {name}", draw))
                self.report.transforms.append(name)
            else:
                self.report.dropped_transforms.append(name)
        if not kept:
            self.report.flags.append("no transform of the inputs is usable for this task")
        return kept

    def _random_slots(self, count: int) -> list[int]:
        return [int(slot) for slot in np.random.permutation(len(self._oracle.layout.slots))[:count]]

    def _batch(self, draws: list[tuple[str, Draw]], *, slots: list[int] | None = None, overwrite: bool = False) -> None:
        """One prepared batch: run, read, compare."""
        self._give_way()
        slots = slots or self._random_slots(len(draws))
        for slot, (_, draw) in zip(slots, draws, strict=True):
            self._oracle.fill(slot, draw)
        keys = [key for _, (key, _) in draws]
        self._oracle.ask_ahead(keys[0], self._protocol)  # computed while the candidate runs
        self._candidate.prepare(self._oracle, slots, observe=True)
        self._candidate.go("ModelNew.forward")
        unchanged = self._candidate.inputs_unchanged(self._oracle, slots)
        described = self._candidate.describe()
        if len(described) != len(draws):
            raise RejectedError(Outcome.REFUSED, "the candidate's process does not keep to the protocol")
        self._candidate.worker.stop()
        answers, outputs = [], []
        for (label, _), one, key, following in zip(draws, described, keys, [*keys[1:], None], strict=True):
            answers.append(self._oracle.answer(key, self._protocol))
            if following is not None and self._oracle.device == "cpu":
                self._oracle.ask_ahead(following, self._protocol)  # computed while this one is compared, by us
            self.mutates |= answers[-1].mutates
            if not unchanged and not self.mutates:
                raise RejectedError(
                    Outcome.WRONG, "ModelNew.forward changed its inputs; write the result into memory of its own"
                )
            self._index += 1
            outputs.append(self.compare(one, answers[-1], f"check {self._index} ({label})"))
        blocks = refuse_shared_outputs(self._candidate, outputs, answers, self.kept)
        if overwrite and self._candidate.device == "cuda":
            self._candidate.overwrite_outputs(_OVERWRITE)
        elif overwrite:
            for output in outputs:
                self._overwrite(output)
        self._candidate.worker.resume()
        self._release([block for mine in blocks for block in mine])
        self.report.num_checks = self._index

    def _release(self, blocks: list[Block]) -> None:
        """Holds the results of a batch, as long as all that is held is not too much; before the clock starts, since
        memory that is held has to be replaced."""
        num_bytes = sum(end - start for start, end in self.kept + blocks)
        keep = num_bytes <= _MAX_KEPT_BYTES
        self._candidate.release(keep=keep)
        if keep:
            self.kept += blocks

    def compare(self, described: dict[str, Any], answer: Answer, where: str) -> list[dict[str, Any]]:
        """Compares one call's outputs, and returns their leaves; the candidate has to be stopped."""
        try:
            return self._compare(described, answer, where)
        except TaskError:  # the reference's own trouble
            raise
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise RejectedError(
                Outcome.REFUSED, f"the candidate's process does not keep to the protocol: {type(error).__name__}"
            ) from error

    def _compare(self, described: dict[str, Any], answer: Answer, where: str) -> list[dict[str, Any]]:
        difference = compare_structure(answer.node, described["node"])
        if difference:
            raise RejectedError(Outcome.WRONG, f"{where}: {difference}")
        if described["plain"] is not True:
            raise RejectedError(Outcome.REFUSED, f"{where}: outputs must be plain torch.Tensor, not a subclass")
        leaves, errors = described["leaves"], []
        self.has_values |= _holds_values(answer.node)
        for index, (leaf, (dtype, shape)) in enumerate(zip(leaves, answer.types, strict=True)):
            name = "the output" if len(leaves) == 1 else f"output {index}"
            check_leaf(leaf, dtype, shape, answer.spans[index], f"{where}: {name}")
            error = self._error_of(leaf, answer, index, f"{where}: {name}")
            if error is not None and math.isfinite(error):
                errors.append(error)
        if not self.report.max_errors:
            self.report.max_errors = errors
        elif len(errors) == len(self.report.max_errors):
            self.report.max_errors = [max(pair) for pair in zip(self.report.max_errors, errors, strict=True)]
        self.leaves = leaves
        return leaves

    def _error_of(self, leaf: dict[str, Any], answer: Answer, index: int, where: str) -> float | None:
        """Largest error of an output that is right. Raises RejectedError."""
        if self._protocol == "hardened":
            error = self._oracle.agrees(answer, index, leaf, lambda *at: self._candidate.copy_leaf(leaf, *at))
            if error is not None:
                return error
        array = self._candidate.read_leaf(leaf)
        difference, error = compare_tensor(answer.outputs[index], array, self._protocol)  # type: ignore[arg-type]
        if difference:
            raise RejectedError(Outcome.WRONG, f"{where}: {difference}")
        return error

    def _overwrite(self, output: list[dict[str, Any]]) -> None:
        """Destroys a result the candidate may have kept, so that only a fresh computation can be right again."""
        for leaf in output:
            num_bytes = span_bytes(leaf, ITEMSIZE[leaf["dtype"]])
            end = leaf["address"] + num_bytes
            if num_bytes and not self._candidate.worker.region.overlaps(leaf["address"], end):
                try:
                    write_memory(self._candidate.worker.pid, leaf["address"], bytearray([_OVERWRITE]) * num_bytes)
                except MemoryAccessError as error:
                    raise RejectedError(Outcome.WRONG, f"an output lies in read-only memory: {error}") from error


def _holds_values(node: dict[str, Any]) -> bool:
    if node["kind"] in ("list", "tuple"):
        return any(map(_holds_values, node["value"]))
    if node["kind"] == "dict":
        return any(_holds_values(item) for _, item in node["value"])
    return node["kind"] in ("bool", "int", "float", "str")
