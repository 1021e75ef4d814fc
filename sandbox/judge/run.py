"""One judgement's phases: load, check, time, and verify what was timed.

Between the pieces of all but `time` it gives way to other jobs on the device that wait for their turn at the clock.
"""

from __future__ import annotations

import contextlib
import secrets
import time
from collections.abc import Iterator
from pathlib import Path

from sandbox.config import JudgeConfig
from sandbox.judge import timing
from sandbox.judge.arena import Arena
from sandbox.judge.candidate_side import CandidateSide
from sandbox.judge.checks import Checker, CheckReport
from sandbox.judge.clocks import ClocksReport
from sandbox.judge.gate import Gate
from sandbox.judge.oracle_side import OracleSide
from sandbox.judge.rejection import RejectedError
from sandbox.judge.rounds import Rounds
from sandbox.judge.shares import Shares
from sandbox.judge.spots import suspect_arrays
from sandbox.judge.timed_outputs import TimedOutputs
from sandbox.judge.worker import WorkerError
from sandbox.types import Artifact, Outcome

_FLOOR_MARGIN, _LEAST_FLOOR_BYTES = 1.2, 4 << 20
"""Below so many bytes a copy's time is that of its launch."""


class Run:
    """The phases of one judgement; their seconds go into `phases`."""

    def __init__(
        self, config: JudgeConfig, oracle: OracleSide, candidate: CandidateSide, phases: dict[str, float], gate: Gate
    ) -> None:
        """`gate`: of the device; whoever calls is within it, but for `time`."""
        self._config = config
        self._oracle = oracle
        self._candidate = candidate
        self._phases = phases
        self._gate = gate
        self._checker = Checker(oracle, candidate, num_checks=config.num_checks, give_way=self.give_way)
        self.shares: Shares | None = None
        """On a CPU, whose code ran while calls were made."""
        self._rounds: Rounds | None = None
        self._outputs: TimedOutputs

    @contextlib.contextmanager
    def phase(self, name: str) -> Iterator[None]:
        began = time.monotonic()
        try:
            yield
        finally:
            self._phases[name] = self._phases.get(name, 0.0) + time.monotonic() - began

    def give_way(self) -> None:
        """Lets a job go first that waits for the clock. Nothing of this one runs meanwhile, its limits neither; what
        it took is the phase `way_s`."""
        if self._gate.is_wanted:
            with self.phase("way_s"):
                self._candidate.worker.stop()
                with self._gate.left():
                    pass
                self._candidate.worker.resume()

    def load(self, scratch: Path, artifact: Artifact, extension_module: str) -> None:
        """Builds the reference while the candidate loads, then ModelNew with the reference's weights."""
        candidate, oracle = self._candidate, self._oracle
        if oracle.device == "cpu" and artifact.shared_object:
            self.shares = Shares(str(scratch / "extension.so"))
        with self.phase("load_s"):
            oracle.begin_build()
            candidate.ask(
                {
                    "op": "load",
                    "protocol": self._config.protocol,
                    "extension_module": extension_module,
                    "model_new": str(scratch / "model_new.py"),
                    "interface": artifact.interface,
                    "shared_object": str(scratch / "extension.so") if artifact.shared_object else "",
                },
                "loading model_new.py",
            )
            oracle.finish_build()
            self.give_way()
            self._share_arena()
            leaves = self._checker.write_weights(perturb=self._config.protocol == "hardened")
            construct = {
                "op": "construct",
                "init": oracle.facts["init"],
                "weights": leaves,
                "init_tensors": oracle.facts["init_tensors"],
                "seed": secrets.randbits(31),
            }
            self._checker.begin()
            candidate.ask(construct, "building ModelNew")
            if candidate.code is not None and self._config.protocol == "hardened":
                own = str(scratch / "extension.so")
                candidate.code.spring(own, lambda message: candidate.ask(message, "building ModelNew"))
                if self.shares is not None:
                    self.shares.code_is_fixed = candidate.code.holds

    def _share_arena(self) -> None:
        facts, layout = self._oracle.facts, self._oracle.layout
        try:
            self._candidate.worker.map(
                Arena.create(layout.size),
                inputs=facts["inputs"],
                leaves=facts["leaves"],
                slots=layout.slots,
                pinned=layout.scratch,
                deadline=time.monotonic() + self._config.timeout_s,
            )
        except WorkerError as error:
            raise self._candidate.rejection(error, "loading model_new.py") from error

    def check(self) -> CheckReport:
        with self.phase("check_s"):
            return self._checker.run()

    def get_ready(self) -> None:
        """What the timed rounds need and others need not stand still for; the candidate is stopped afterwards, since
        another may be timed before it."""
        with self.phase("ready_s"):
            self._oracle.ask({"op": "settle"})
            self._outputs = TimedOutputs(self._oracle, self._candidate, self._checker)
            self._rounds = Rounds(
                self._config,
                self._oracle,
                self._candidate,
                self._outputs,
                mutates=self._checker.mutates,
                shares=self.shares,
            )
            self._rounds.get_ready()
            self.give_way()
            self._rounds.make_first_calls()
            self._candidate.worker.stop()

    def time(self, compile_ratio: float) -> tuple[timing.Series, timing.Series]:
        """Interleaved rounds of candidate and eager; the candidate is stopped afterwards, or dead where that failed.

        `compile_ratio` as of timing.is_clear.
        """
        assert self._rounds is not None
        with self.phase("time_s"):
            try:
                return self._rounds.run(compile_ratio)
            except BaseException:
                self._candidate.worker.kill()  # it may still be at work, and the next turn begins as this one ends
                raise

    @property
    def clocks(self) -> ClocksReport | None:
        """On a GPU, after `time`."""
        return self._rounds.clocks if self._rounds is not None else None

    def check_floor(self, candidate: timing.Series) -> dict[str, float]:
        """Raises RejectedError where a candidate is faster than its inputs and outputs can be moved."""
        with self.phase("floor_s"):
            key, _ = self._oracle.draw()
            num_bytes, rate = self._oracle.footprint(key)
            self._oracle.forget([key])
        if rate is None or num_bytes < _LEAST_FLOOR_BYTES:
            return {"bytes": num_bytes}
        floor_ms = num_bytes / (_FLOOR_MARGIN * rate)
        if candidate.median_ms < floor_ms:
            raise RejectedError(
                Outcome.REFUSED,
                f"{candidate.median_ms:.4g} ms is faster than the {num_bytes / 1e6:.4g} MB that every right answer has "
                f"to move can be copied ({floor_ms:.4g} ms); no kernel does that, so the work is not done in the call",
            )
        return {"bytes": num_bytes, "floor_ms": floor_ms, "copy_gb_s": rate / 1e6}

    def check_shares(self, candidate: timing.Series) -> None:
        """Raises RejectedError where torch's libraries did what the candidate's own kernels should do."""
        floor, call_ms = self._config.own_share_floor, min(candidate.values_ms)  # the call that was disturbed least
        if self.shares is None:
            return
        if floor and self.shares.is_foreign_work():
            raise RejectedError(
                Outcome.REFUSED,
                f"{self.shares.of_foreign:.0%} of the computing time is spent in functions of torch's libraries that "
                "compute, or in generated code; do all of the work in kernels of your own",
            )
        if self.shares.is_torchs_work(floor, call_ms):
            raise RejectedError(
                Outcome.REFUSED,
                f"{self.shares.of_torch:.0%} of the computing time is spent in torch's libraries, less than "
                f"{floor:.0%} in kernels of your own; do the work in kernels/",
            )

    def verify_timed(self) -> None:
        """Compares what was kept of timed calls with the reference's answers."""
        assert self._rounds is not None
        with self.phase("verify_s"):
            for key, outputs in self._rounds.snapshots:
                self._outputs.compare(outputs, self._oracle.answer(key, self._config.protocol))
            for key, node in self._rounds.nodes:
                self._outputs.compare_node(node, self._oracle.answer(key, self._config.protocol))
            for suspect in self._rounds.spots.suspects if self._rounds.spots is not None else ():
                answer = self._oracle.answer(suspect.key, self._config.protocol)
                self._outputs.compare(suspect_arrays(suspect, answer), answer)
