"""DeviceJudge: checks and times candidates on one device, in processes of its own.

                      ┌── zygote (torch imported) ── forks ──┐
    DeviceJudge ──────┤                                      ├─► reference worker: Model, inputs, float64 answers, eager
    clock, comparison │                                      └─► candidate worker: model_new.py + kernels, other user
    verdict           └── compile zygote (TorchInductor) ──────► baseline worker: eager against torch.compile

Both workers are new for every judgement and dead before its verdict is returned. On CPU a device is a set of cores; a
GPU has a context in each worker, and what may have been its fault is only a verdict when it happens twice.

Several judgements may be under way (judge.jobs_per_device): they load, check and end side by side, and each has its
turn at the clock alone (sandbox.judge.gate). What a neighbour may have caused, a lack of memory or of time, counts only
when it happens without one.
"""

from __future__ import annotations

import contextlib
import os
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
from sandbox.judge.gate import Gate
from sandbox.judge.health import GpuHealth
from sandbox.judge.oracle_side import OracleSide
from sandbox.judge.ownwork import refuse_observed
from sandbox.judge.rejection import RejectedError
from sandbox.judge.result import judgement, timed_judgement
from sandbox.judge.run import Run
from sandbox.judge.spec import DeviceSpec
from sandbox.judge.task_baselines import TaskBaselines
from sandbox.judge.turn import Turns, probe_of
from sandbox.judge.worker import Worker
from sandbox.judge.workers import Pair, Workers
from sandbox.quiet import QuietLease
from sandbox.reward import REJECTED
from sandbox.skill import load_skill
from sandbox.types import Artifact, Candidate, DeviceError, Judgement, Outcome, Sanitized, Task


class DeviceJudge:
    """One device. As many threads as judge.jobs_per_device may call it at once; `warm_compile` may run beside them."""

    def __init__(self, config: JudgeConfig, spec: DeviceSpec, quiet: QuietLease | None = None) -> None:
        self._config = config
        self._spec = spec
        self.folder = Path(tempfile.mkdtemp(prefix="judge-"))
        """Of candidates' files. Nobody else can list it: what a judge leaves there that is killed is not found."""
        self.folder.chmod(0o711)
        self._workers = Workers(config, spec)
        self._turns = Turns(quiet, self._workers)
        self._jobs = Gate()
        """Shared by whole jobs; alone where a neighbour is to be ruled out."""
        self._several = config.jobs_per_device > 1 and self._workers.tells_apart
        self._health = GpuHealth(spec, self._workers)
        self._baselines = TaskBaselines(
            config, spec, workers=self._workers, turns=self._turns, health=self._health, has_room=self._has_room
        )

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

        def once(*, again: bool) -> Judgement:
            return self._judge(task, candidate, artifact, skill, timed=timed, again=again)

        try:
            with self._beside():
                return once(again=False)
        except _SuspectError as error:
            first = error.judgement.message
        except DeviceError as error:
            if not self._several:
                raise
            first = str(error)
        with self._jobs.alone():
            self._health.require_well()
            try:
                verdict = once(again=True)
            except _SuspectError as error:
                verdict = error.judgement
        return replace(verdict, details=verdict.details | {"first_try": first})

    @property
    def _has_neighbours(self) -> bool:
        """Other candidates may be under way beside the job that asks."""
        return self._several and not self._jobs.is_taken

    def _beside(self) -> contextlib.AbstractContextManager[None]:
        """A job beside others, where candidates have users of their own."""
        return self._jobs.shared() if self._several else self._jobs.alone()

    def _judge(
        self, task: Task, candidate: Candidate, artifact: Artifact, skill: str, *, timed: bool, again: bool
    ) -> Judgement:
        """`again`: what the device may have been the cause of counts."""
        phases: dict[str, float] = {}
        began = time.monotonic()
        with contextlib.ExitStack() as stack:
            last = stack.enter_context(contextlib.ExitStack())
            pair = stack.enter_context(self._pair(phases))  # not as work: workers that start can be stopped at any time
            last.enter_context(self._turns.work.shared())
            scratch = stack.enter_context(self._scratch(candidate, artifact, pair.uid))
            oracle = OracleSide(pair.oracle, task, self._spec.kind, has_room=self._has_room(pair.facts))
            side = CandidateSide(
                pair.candidate, self._config.timeout_s, self._config.protocol, self._spec.kind, pair.code
            )
            if self._config.protocol == "hardened":
                side.observed = refuse_observed
            run = Run(self._config, oracle, side, phases, self._turns.work)
            details: dict[str, Any] = {"protocol": self._config.protocol} | self._health.described()
            try:
                run.load(scratch, artifact, load_skill(skill).extension_module)
                report = run.check()
                details["checks"] = report.to_json()
                if not timed:
                    text = f"correct in {report.num_checks} checks; not timed"
                    return judgement(Outcome.CORRECT, None, text, details, phases, began)
                baseline, candidate_series, eager_series = self._time(task, run, pair, oracle, details, again=again)
            except RejectedError as rejection:
                verdict = judgement(rejection.outcome, REJECTED, rejection.message, details, phases, began)
                late = rejection.outcome is Outcome.TIMEOUT and self._has_neighbours
                if rejection.device_trouble or late:
                    raise _SuspectError(verdict) from rejection
                return verdict
            except MemoryAccessError as error:
                if pair.oracle.has_ended:
                    raise DeviceError(f"the reference's process failed while its memory was read: {error}") from error
                raise DeviceError(
                    f"the judge cannot read its workers' memory ({error}); it needs to run as root with "
                    "CAP_SYS_PTRACE, or as an ordinary user"
                ) from error
        return timed_judgement(baseline, candidate_series, eager_series, details, phases, began)

    def _time(
        self, task: Task, run: Run, pair: Pair, oracle: OracleSide, details: dict[str, Any], *, again: bool
    ) -> tuple[Baseline, timing.Series, timing.Series]:
        """The task's baseline, and the times of candidate and eager, with all that times have to pass."""
        with run.phase("baseline_s"), self._without(pair.candidate):
            baseline = self._baselines.of(task)
        run.get_ready()
        with self._turns.work.left(), self._turns.take(pair.oracle, pair.candidate, probe=probe_of(oracle)) as turn:
            candidate, eager = run.time(baseline.compile_ms / baseline.eager_ms)
        pair.candidate.begin_end()  # which takes as long as what follows
        details["turn"] = turn.to_json()
        turn.require_calm(eager)
        run.verify_timed()
        if run.shares is not None:
            details["shares"] = run.shares.to_json()
            if self._config.protocol == "hardened":
                run.check_shares(candidate)
        if run.clocks is not None:
            details |= run.clocks.to_json()
            self._health.require_prompt(run.clocks.same_ms["eager"])
            if run.clocks.doubt and not again:
                raise RejectedError(Outcome.REFUSED, run.clocks.doubt, device_trouble=True)
            if self._config.protocol == "hardened":
                details["floor"] = run.check_floor(candidate)
        pair.candidate.kill()  # dead before another has its turn: the end of a process is work too
        with run.phase("baseline_s"), self._turns.work.left():
            return self._baselines.revised(task, baseline, eager, details), candidate, eager

    @contextlib.contextmanager
    def _without(self, candidate: Worker) -> Iterator[None]:
        """Something else in the midst of a judgement, which stands still until it is done."""
        candidate.stop()
        with self._turns.work.left():
            yield
        candidate.resume()

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
        """(eager_ms, compile_ms) of a task, from the cache or measured now. Raises DeviceError, TaskError."""
        try:
            with self._beside():
                baseline = self._baselines.of(task)
        except DeviceError:
            if not self._several:
                raise
            with self._jobs.alone():
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
        with self._jobs.alone(), self._workers.user() as uid, self._scratch(candidate, artifact, uid) as scratch:
            return sanitize.run(task, artifact, scratch, load_skill(skill).extension_module, self._spec, uid)

    def wait_ready(self) -> None:
        """Raises DeviceError where the device cannot be used."""
        self._workers.wait_ready()
        self._health.ask()

    def _has_room(self, facts: dict[str, Any]) -> bool:
        """The memory of a GPU was free when new workers came to it, and no neighbour takes it."""
        return self._health.had_room(facts) and not self._has_neighbours

    def close(self) -> None:
        self._baselines.close()
        self._workers.close()
        self._turns.close()
        shutil.rmtree(self.folder, ignore_errors=True)

    @contextlib.contextmanager
    def _scratch(self, candidate: Candidate, artifact: Artifact, uid: int | None) -> Iterator[Path]:
        """A folder that the candidate, user `uid`, can read and not write, and no other candidate; gone afterwards."""
        scratch = Path(tempfile.mkdtemp(dir=self.folder))
        try:
            if uid is not None:
                os.chown(scratch, -1, uid)
                scratch.chmod(0o750)
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
