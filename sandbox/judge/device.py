"""DeviceJudge: checks and times candidates on one device, in processes of its own.

                      ┌── zygote (torch imported) ── forks ──┐
    DeviceJudge ──────┤                                      ├─► reference worker: Model, inputs, float64 answers, eager
    clock, comparison │                                      └─► candidate worker: model_new.py + kernels, other user
    verdict           └── compile zygote (TorchInductor) ──────► baseline worker: eager against torch.compile

Both workers are new for every judgement and dead before its verdict is returned. On CPU a device is a set of cores; a
GPU has a context in each worker, and what may have been its fault is only a verdict when it happens twice.
"""

from __future__ import annotations

import contextlib
import shutil
import tempfile
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

from sandbox.baselines import Baseline
from sandbox.config import JudgeConfig
from sandbox.judge import sanitize, timing
from sandbox.judge.arena import MemoryAccessError
from sandbox.judge.candidate_side import CandidateSide
from sandbox.judge.fits import check_fits
from sandbox.judge.health import GpuHealth
from sandbox.judge.oracle_side import OracleSide
from sandbox.judge.ownwork import refuse_observed
from sandbox.judge.rejection import RejectedError
from sandbox.judge.result import judgement, timed_judgement
from sandbox.judge.run import Run
from sandbox.judge.spec import DeviceSpec
from sandbox.judge.task_baselines import TaskBaselines
from sandbox.judge.turn import Turns, probe_of
from sandbox.judge.workers import Pair, Workers
from sandbox.quiet import QuietLease
from sandbox.reward import REJECTED
from sandbox.skill import load_skill
from sandbox.types import Artifact, Candidate, DeviceError, Judgement, Outcome, Sanitized, Task


class DeviceJudge:
    """One device. It does one job at a time; only `warm_compile` may run in another thread beside it."""

    def __init__(self, config: JudgeConfig, spec: DeviceSpec, quiet: QuietLease | None = None) -> None:
        self._config = config
        self._spec = spec
        self._turns = Turns(quiet)
        self._workers = Workers(config, spec)
        self._health = GpuHealth(spec, self._workers)
        self._baselines = TaskBaselines(config, spec, workers=self._workers, turns=self._turns, health=self._health)

    def judge(
        self, task: Task, candidate: Candidate, artifact: Artifact, *, skill: str, timed: bool = True
    ) -> Judgement:
        """The verdict on a compiled candidate.

        Raises:
            DeviceError: trouble of ours; restart the device and try again.
            TaskError: the reference itself does not run.
            ValueError: the skill's candidates do not run on this kind of device.
        """
        check_fits(skill, artifact, self._spec, self._health.facts)
        try:
            return self._judge(task, candidate, artifact, skill, timed)
        except _SuspectError as first:
            self._health.require_well()
            try:
                verdict = self._judge(task, candidate, artifact, skill, timed)
            except _SuspectError as second:
                verdict = second.judgement
            return replace(verdict, details=verdict.details | {"first_try": first.judgement.message})

    def _judge(self, task: Task, candidate: Candidate, artifact: Artifact, skill: str, timed: bool) -> Judgement:
        phases: dict[str, float] = {}
        began = time.monotonic()
        with self._scratch(candidate, artifact) as scratch, self._pair(phases) as pair:
            oracle = OracleSide(pair.oracle, task, self._spec.kind, has_room=self._health.has_room)
            side = CandidateSide(pair.candidate, self._config.timeout_s, self._config.protocol, self._spec.kind)
            if self._config.protocol == "hardened":
                side.observed = refuse_observed
            run = Run(self._config, oracle, side, phases)
            details: dict[str, Any] = {"protocol": self._config.protocol} | self._health.described()
            try:
                run.load(scratch, artifact, load_skill(skill).extension_module)
                report = run.check()
                details["checks"] = report.to_json()
                if not timed:
                    text = f"correct in {report.num_checks} checks; not timed"
                    return judgement(Outcome.CORRECT, None, text, details, phases, began)
                baseline, candidate_series, eager_series = self._time(task, run, pair, oracle, details)
            except RejectedError as rejection:
                verdict = judgement(rejection.outcome, REJECTED, rejection.message, details, phases, began)
                if rejection.device_trouble:
                    raise _SuspectError(verdict) from rejection
                return verdict
            except MemoryAccessError as error:
                raise DeviceError(
                    f"the judge cannot read its workers' memory ({error}); it needs to run as root with "
                    "CAP_SYS_PTRACE, or as an ordinary user"
                ) from error
        return timed_judgement(baseline, candidate_series, eager_series, details, phases, began)

    def _time(
        self, task: Task, run: Run, pair: Pair, oracle: OracleSide, details: dict[str, Any]
    ) -> tuple[Baseline, timing.Series, timing.Series]:
        """The task's baseline, and the times of candidate and eager, with all that times have to pass."""
        with run.phase("baseline_s"):
            baseline = self._baselines.of(task)
        with run.phase("settle_s"):
            self._workers.settle()
        run.get_ready()
        with self._turns.take(pair.oracle, pair.candidate, probe=probe_of(oracle)) as turn:
            candidate, eager = run.time()
        details["turn"] = turn.to_json()
        turn.require_calm(eager)
        run.verify_timed()
        if run.shares is not None:
            details["shares"] = run.shares.to_json()
            if self._config.protocol == "hardened":
                run.check_shares(candidate)
        if self._spec.kind == "cuda":
            details["outside_ms"] = run.outside_ms
            if self._config.protocol == "hardened":
                details["floor"] = run.check_floor(candidate)
        with run.phase("baseline_s"):
            return self._baselines.revised(task, baseline, eager, details), candidate, eager

    @contextlib.contextmanager
    def _pair(self, phases: dict[str, float]) -> Iterator[Pair]:
        """The two workers of a judgement; what their start and their end take goes into `phases`."""
        began = time.monotonic()
        ending = began
        try:
            with self._workers.pair() as pair:
                phases["start_s"] = time.monotonic() - began
                self._health.note(pair.facts)
                try:
                    yield pair
                finally:
                    ending = time.monotonic()
        finally:
            phases["end_s"] = time.monotonic() - ending

    def baseline(self, task: Task) -> tuple[float, float]:
        """(eager_ms, compile_ms) of a task, from the cache or measured now."""
        baseline = self._baselines.of(task)
        return baseline.eager_ms, baseline.compile_ms

    def warm_compile(self, task: Task) -> float:
        """Compiles a task's baseline without timing it; seconds. May run beside other work."""
        return self._baselines.warm_compile(task)

    def sanitize(self, task: Task, candidate: Candidate, artifact: Artifact, *, skill: str) -> Sanitized:
        """Runs a candidate once under compute-sanitizer, as the candidate's user. Raises like `judge`."""
        check_fits(skill, artifact, self._spec, self._health.facts)
        if self._spec.kind != "cuda":
            return Sanitized(clean=False, text="compute-sanitizer looks at CUDA kernels; this judge has no GPU")
        with self._scratch(candidate, artifact) as scratch:
            return sanitize.run(
                task, artifact, scratch, load_skill(skill).extension_module, self._spec, self._workers.uid
            )

    def wait_ready(self) -> None:
        """Raises DeviceError where the device cannot be used."""
        self._workers.wait_ready()
        self._health.ask()

    def close(self) -> None:
        self._baselines.close()
        self._workers.close()
        self._turns.close()

    @contextlib.contextmanager
    def _scratch(self, candidate: Candidate, artifact: Artifact) -> Iterator[Path]:
        """A folder the candidate can read and not write, with what it needs; gone afterwards."""
        scratch = Path(tempfile.mkdtemp(prefix="candidate-"))
        try:
            scratch.chmod(0o755)
            (scratch / "model_new.py").write_text(candidate.files.get("model_new.py", ""))
            if artifact.shared_object:
                (scratch / "extension.so").write_bytes(artifact.shared_object)
                (scratch / "extension.so").chmod(0o755)
            yield scratch
        finally:
            shutil.rmtree(scratch, ignore_errors=True)


class _SuspectError(Exception):
    """A verdict that a sick device could have caused as well."""

    def __init__(self, judgement: Judgement) -> None:
        super().__init__(judgement.message)
        self.judgement = judgement
