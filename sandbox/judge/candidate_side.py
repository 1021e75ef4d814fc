"""The candidate worker as the supervisor sees it: every failure of it is a RejectedError.

Inputs are copied while the candidate is stopped, so nothing in it sees them before the clock starts; outputs are read
out of its memory while it is stopped again, so nothing in it runs after the clock has ended.

A GPU's memory cannot be read from outside: there the worker itself copies inputs in before and outputs out after the
clock, while none of the candidate's code is called (its kernels start no host threads, sandbox.symbols sees to that),
and `go` ends when the device is idle.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from sandbox.judge.arena import MemoryAccessError, read_memory, span_bytes
from sandbox.judge.batch import BatchTimes, run_batch
from sandbox.judge.code_trap import CodeTrap
from sandbox.judge.described import checked_outputs
from sandbox.judge.oracle_side import OracleSide
from sandbox.judge.rejection import RejectedError, rejection_for
from sandbox.judge.shares import Shares
from sandbox.judge.values import ITEMSIZE
from sandbox.judge.worker import Region, Worker, WorkerError
from sandbox.types import Outcome


@dataclass
class CandidateSide:
    """The candidate worker. Every failure of it is a RejectedError; its time is bounded as a whole."""

    worker: Worker
    timeout_s: float
    protocol: str
    device: str = "cpu"
    code: CodeTrap | None = None
    """What its process can run; None on a GPU."""
    used_s: float = 0.0
    input_regions: list[Region] = field(default_factory=list)
    """Memory that holds inputs beside the arena."""
    observed: Callable[[dict[str, Any]], None] = lambda reply: None

    def ask(self, message: dict[str, Any], phase: str) -> dict[str, Any]:
        with _Stopwatch(self):
            try:
                reply = self.worker.ask(message, deadline=time.monotonic() + self.timeout_s - self.used_s)
            except WorkerError as error:
                raise self.rejection(error, phase) from error
        self.observed(reply)
        return reply

    def rejection(self, error: WorkerError, phase: str) -> RejectedError:
        if self.code is not None and self.code.was_asked_for_more:
            return RejectedError(
                Outcome.REFUSED,
                f"{phase}: the process asked for memory that can be executed, once ModelNew was built; all code of a "
                "candidate is in the shared object that was compiled of kernels/",
            )
        return rejection_for(error, phase, timeout_s=self.timeout_s, device=self.device, observed=self.observed)

    def prepare(self, oracle: OracleSide, slots: list[int], *, observe: bool) -> None:
        """Readies a batch with the inputs that lie in the oracle's slots; the process is stopped then."""
        if self.device == "cuda":  # copied to the GPU while it prepares, but for what is mixed there
            self._copy_inputs(oracle, [slot for slot in slots if slot not in oracle.mixes])
        self.ask(oracle.batch("candidate", slots, observe=observe), "prepare")
        self.worker.stop()
        if self.device == "cpu":
            self._copy_inputs(oracle, slots)

    def stage(self, oracle: OracleSide, slots: list[int]) -> None:
        """Copies slots of the oracle's arena to the GPU, where they are mixed; the process is stopped before and
        after."""
        self._copy_inputs(oracle, slots)
        self.worker.resume()
        self.ask({"op": "stage", "slots": slots}, "staging inputs")
        self.worker.stop()

    def prepare_blank(self, num_calls: int) -> None:
        """Readies a batch that calls nothing."""
        self.ask({"op": "prepare", "blank": num_calls, "slots": [], "observe": False}, "prepare")
        self.worker.stop()

    def go(self, phase: str) -> BatchTimes:
        """Runs the batch. The process is stopped after."""
        with _Stopwatch(self):
            try:
                times = run_batch(self.worker, self.timeout_s - self.used_s)
            except WorkerError as error:
                raise self.rejection(error, phase) from error
        self.worker.stop()
        return times

    def go_watched(self, phase: str, shares: Shares, goal: int) -> None:
        """As `go`, but stopped again and again to see whose code runs: no time is taken."""
        with _Stopwatch(self):
            try:
                deadline = time.monotonic() + self.timeout_s - self.used_s
                self.worker.spread()
                self.worker.send({"op": "go"})
                self.worker.wake()
                shares.watch(self.worker, deadline - time.monotonic(), goal)
                self.worker.receive(deadline=deadline)
            except WorkerError as error:
                raise self.rejection(error, phase) from error
        self.worker.stop()

    def describe(self) -> list[dict[str, Any]]:
        """What the outputs of the batch are, by the candidate's own word; checked against memory by the caller."""
        self.worker.resume()
        reply = self.ask({"op": "describe"}, "describe")
        try:
            self.input_regions = [Region(int(start), int(end)) for start, end in reply["input_ranges"]]
            return checked_outputs(reply.get("outputs"))
        except (KeyError, TypeError, ValueError, OverflowError) as error:
            raise RejectedError(Outcome.REFUSED, "the candidate's process does not keep to the protocol") from error

    def observe(self) -> None:
        """What was seen of the batch, which nobody reads the outputs of. Raises RejectedError where it is forbidden."""
        self.worker.resume()
        self.ask({"op": "observe"}, "ModelNew.forward")

    def collect(self, call: int) -> list[dict[str, Any]]:
        """Leaves of one call of a timed batch, copied out of the GPU."""
        self.worker.resume()
        said = self.ask({"op": "collect", "call": call}, "collect")
        try:
            return checked_outputs([said])[0]["leaves"]
        except ValueError as error:
            raise RejectedError(Outcome.REFUSED, str(error)) from error

    def gather(self, places: list[list[list[int]]]) -> dict[str, Any]:
        """On a GPU: elements of the outputs of a timed batch, as serving.ModelServer.do_gather has them."""
        self.worker.resume()
        return self.ask({"op": "gather", "places": places}, "reading a timed call's output")

    def overwrite_outputs(self, byte: int) -> None:
        """On a GPU: destroys the results of the batch where they lie."""
        self.worker.resume()
        self.ask({"op": "overwrite", "byte": byte}, "overwrite")

    def holds_inputs(self, start: int, end: int) -> bool:
        """True where a block of the candidate's memory overlaps its inputs."""
        return any(region.overlaps(start, end) for region in (self.worker.region, *self.input_regions))

    def release(self, *, keep: bool = False) -> None:
        """Forgets the results of the batch; if they are kept they stay alive, as where a caller holds them."""
        self.ask({"op": "release", "keep": keep}, "release")

    def read_leaf(self, leaf: dict[str, Any]) -> np.ndarray:
        try:
            return self.worker.read_array(leaf)
        except MemoryAccessError as error:
            raise RejectedError(Outcome.RUNTIME_ERROR, f"an output's memory cannot be read: {error}") from error

    def copy_leaf(self, leaf: dict[str, Any], memory: Any, offset: int) -> None:
        """An output's bytes, with the gaps of its layout, into memory of ours."""
        try:
            read_memory(self.worker.pid, leaf["address"], memory, offset, span_bytes(leaf, ITEMSIZE[leaf["dtype"]]))
        except MemoryAccessError as error:
            raise RejectedError(Outcome.RUNTIME_ERROR, f"an output's memory cannot be read: {error}") from error

    def _copy_inputs(self, oracle: OracleSide, slots: list[int]) -> None:
        """The same bytes as in the oracle's arena; on the CPU the process has to be stopped."""
        source, target = memoryview(oracle.worker.arena.memory), memoryview(self.worker.arena.memory)  # type: ignore
        for slot in set(slots):  # in the warm-up calls share them
            where = oracle.layout.slot_range(slot)
            target[where] = source[where]

    def mixed_inputs_unchanged(self, oracle: OracleSide, slot: int, key: int) -> bool:
        """On a GPU: does a slot outside of the arena still hold what the oracle has as a draw?"""
        oracle.fill(0, (key, []))
        self.worker.resume()
        self.ask({"op": "copy_back", "slots": [slot], "into": [0]}, "reading inputs back")
        return self._same_slots(oracle, [0])

    def inputs_unchanged(self, oracle: OracleSide, slots: list[int]) -> bool:
        """Do the inputs of a batch still hold what they were given?"""
        if self.device == "cuda":
            self.worker.resume()
            self.ask({"op": "copy_back", "slots": slots, "into": slots}, "reading inputs back")
        return self._same_slots(oracle, slots)

    def _same_slots(self, oracle: OracleSide, slots: list[int]) -> bool:
        source = np.frombuffer(oracle.worker.arena.memory, dtype=np.uint8)  # type: ignore[union-attr]
        target = np.frombuffer(self.worker.arena.memory, dtype=np.uint8)  # type: ignore[union-attr]
        ranges = [oracle.layout.slot_range(slot) for slot in slots]
        return all(np.array_equal(source[where], target[where]) for where in ranges)


class _Stopwatch:
    """Adds the time inside to what the candidate has used."""

    def __init__(self, side: CandidateSide) -> None:
        self._side = side

    def __enter__(self) -> None:
        self._began = time.monotonic()

    def __exit__(self, *exc: object) -> None:
        self._side.used_s += time.monotonic() - self._began
