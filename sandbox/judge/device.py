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
import functools
import os
import shutil
import tempfile
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from sandbox.baselines import Baseline, BaselineStore
from sandbox.config import JudgeConfig
from sandbox.judge import sanitize, timing
from sandbox.judge.arena import MemoryAccessError
from sandbox.judge.candidate_side import CandidateSide, RejectedError
from sandbox.judge.fits import check_fits
from sandbox.judge.gate import Gate
from sandbox.judge.oracle_side import OracleSide, new_seed
from sandbox.judge.ownwork import refuse_observed
from sandbox.judge.pair import time_pair
from sandbox.judge.result import judgement, timed_judgement
from sandbox.judge.run import Run
from sandbox.judge.spec import DeviceSpec
from sandbox.judge.turn import Probe, Turns
from sandbox.judge.workers import Pair, Workers
from sandbox.quiet import QuietLease
from sandbox.reward import REJECTED
from sandbox.skill import load_skill
from sandbox.types import Artifact, Candidate, DeviceError, Judgement, Outcome, Sanitized, Task

_DRIFT_LIMIT = 2.0
_GPU_CLOCK = "clock 2"
"""Another one wherever sandbox.judge.gpu takes other times of the same code: stored baselines are then taken anew."""
_COMPILE_TIMEOUT_S = 600.0
"""Most of it the process may have stood still, since others were timed."""
_MEMORY_RETURNS_S, _HEALTHY_FREE_SHARE, _ENOUGH_BYTES = 30.0, 0.9, 8 << 30
_ROOMY_SHARE = 0.75
"""Of the memory that was free at first: two workers' contexts take a part, another program would take more."""


class DeviceJudge:
    """One device. As many threads as judge.jobs_per_device may call it at once; `warm_compile` may run beside them."""

    def __init__(self, config: JudgeConfig, spec: DeviceSpec, quiet: QuietLease | None = None) -> None:
        self._config = config
        self._spec = spec
        self._workers = Workers(config, spec)
        self._jobs, self._work = Gate(), Gate()
        """Whole jobs, alone where a neighbour is to be ruled out; and their work, alone while a clock runs."""
        self._turns = Turns(quiet, self._work, self._workers)
        self._several = config.jobs_per_device > 1 and self._workers.tells_apart
        self._cache_dir = config.baseline_dir.expanduser()
        self._gpu: dict[str, Any] = {}
        """What the first worker of a GPU said about it."""
        self._free_bytes = 0
        self._parking = threading.Lock()
        self._parked: dict[str, _Compiled] = {}
        """By the task's code, what warm_compile has left for `baseline`."""

    def judge(
        self, task: Task, candidate: Candidate, artifact: Artifact, *, skill: str, timed: bool = True
    ) -> Judgement:
        """The verdict on a compiled candidate.

        Raises:
            DeviceError: trouble of ours; restart the device and try again.
            TaskError: the reference itself does not run.
            ValueError: the skill's candidates do not run on this kind of device.
        """
        check_fits(skill, artifact, self._spec, self._gpu)

        def once() -> Judgement:
            return self._judge(task, candidate, artifact, skill, timed)

        try:
            with self._beside():
                return once()
        except _SuspectError as error:
            first = error.judgement.message
        except DeviceError as error:
            if not self._several:
                raise
            first = str(error)
        with self._jobs.alone():
            self._require_healthy()
            try:
                verdict = once()
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

    def _judge(self, task: Task, candidate: Candidate, artifact: Artifact, skill: str, timed: bool) -> Judgement:
        phases: dict[str, float] = {}
        began = time.monotonic()
        with contextlib.ExitStack() as stack:
            last = stack.enter_context(contextlib.ExitStack())
            pair = stack.enter_context(self._pair(phases))  # not as work: workers that start can be stopped at any time
            last.enter_context(self._work.shared())
            scratch = stack.enter_context(self._scratch(candidate, artifact, pair.uid))
            oracle = OracleSide(pair.oracle, task, self._spec.kind, has_room=self._has_room(pair.facts))
            side = CandidateSide(pair.candidate, self._config.timeout_s, self._config.protocol, self._spec.kind)
            if self._config.protocol == "hardened":
                side.observed = refuse_observed
            run = Run(self._config, oracle, side, phases, self._work)
            details: dict[str, Any] = {"protocol": self._config.protocol} | self._described_gpu()
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
                late = rejection.outcome is Outcome.TIMEOUT and self._has_neighbours
                if rejection.device_trouble or late:
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
            baseline = self._baseline_within(task, pair)
        run.get_ready()
        with self._work.left(), self._turns.take(pair.oracle, pair.candidate, probe=self._probe(oracle)) as turn:
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
            return self._revised(task, pair, baseline, eager, details), candidate, eager

    @contextlib.contextmanager
    def _pair(self, phases: dict[str, float]) -> Iterator[Pair]:
        """The two workers of a judgement; what their start and their end take goes into `phases`."""
        began = time.monotonic()
        ending = began
        try:
            with self._workers.pair() as pair:
                phases["start_s"] = time.monotonic() - began
                self._free_bytes = pair.facts.get("free_bytes", 0)
                try:
                    yield pair
                finally:
                    ending = time.monotonic()
        finally:
            phases["end_s"] = time.monotonic() - ending

    def _require_healthy(self) -> None:
        """Raises DeviceError where a new worker cannot compute on the device, or where its memory stays taken."""
        if self._spec.kind == "cpu":
            return
        self._workers.drop_spares()
        needed, deadline = _HEALTHY_FREE_SHARE * self._free_bytes, time.monotonic() + _MEMORY_RETURNS_S
        while True:
            with self._workers.oracle() as (_, facts):
                free = facts["free_bytes"]
            if free >= needed or (time.monotonic() > deadline and free >= _ENOUGH_BYTES):
                return  # with enough left, what is missing may be another program's
            if time.monotonic() > deadline:
                raise DeviceError(f"{free >> 20} MiB of {self._gpu['name']} are free, {int(needed) >> 20} MiB were")
            time.sleep(0.5)  # a killed process's memory comes back after its end

    def baseline(self, task: Task) -> tuple[float, float]:
        """(eager_ms, compile_ms) of a task, from the cache or measured now. Raises DeviceError, TaskError."""
        try:
            with self._beside():
                baseline = self.baseline_of(task)
        except DeviceError:
            if not self._several:
                raise
            with self._jobs.alone():
                baseline = self.baseline_of(task)
        return baseline.eager_ms, baseline.compile_ms

    def baseline_of(self, task: Task, *, fresh: bool = False) -> Baseline:
        """Not within the gate of work."""
        baseline = self._store.get_or_measure(task, lambda: self._measure_baseline(task), fresh=fresh)
        with self._parking:
            parked = self._parked.pop(task.code, None)
        if parked is not None:  # another process has timed it
            with self._ended_as_work(parked.stack):
                pass
        return baseline

    def _baseline_within(self, task: Task, pair: Pair, *, fresh: bool = False) -> Baseline:
        """A task's baseline in the midst of a judgement, which stands still until it is there."""
        pair.candidate.stop()
        with self._work.left():
            baseline = self.baseline_of(task, fresh=fresh)
        pair.candidate.resume()
        return baseline

    def warm_compile(self, task: Task) -> float:
        """Compiles a task's baseline without timing it; seconds. May run beside other work.

        The process that has it compiled waits for `baseline`, which then only has to take the times.
        """
        began = time.monotonic()
        if not self._store.has(task):
            with contextlib.ExitStack() as stack:
                compiled = self._compiled(task, stack)
                with self._parking:
                    if task.code not in self._parked:
                        self._parked[task.code] = replace(compiled, stack=stack.pop_all())
        return time.monotonic() - began

    def _compiled(self, task: Task, stack: contextlib.ExitStack) -> _Compiled:
        """A process with eager and torch.compile of a task, which stands still while other jobs are timed."""
        began = time.monotonic()
        worker, facts = stack.enter_context(self._workers.oracle(compiling=True))
        stack.enter_context(self._turns.citizen(worker))
        oracle = OracleSide(worker, task, self._spec.kind, has_room=self._has_room(facts))
        oracle.build(perturb=False)
        oracle.ask({"op": "compile", "seed": new_seed()}, limit_s=_COMPILE_TIMEOUT_S)
        return _Compiled(oracle, stack, time.monotonic() - began)

    def sanitize(self, task: Task, candidate: Candidate, artifact: Artifact, *, skill: str) -> Sanitized:
        """Runs a candidate once under compute-sanitizer, as the candidate's user. Raises like `judge`."""
        check_fits(skill, artifact, self._spec, self._gpu)
        if self._spec.kind != "cuda":
            return Sanitized(clean=False, text="compute-sanitizer looks at CUDA kernels; this judge has no GPU")
        with self._jobs.alone(), self._workers.user() as uid, self._scratch(candidate, artifact, uid) as scratch:
            return sanitize.run(task, artifact, scratch, load_skill(skill).extension_module, self._spec, uid)

    def wait_ready(self) -> None:
        """Raises DeviceError where the device cannot be used."""
        self._workers.wait_ready()
        if self._spec.kind == "cuda":
            with self._workers.oracle() as (_, self._gpu):
                pass

    @functools.cached_property
    def _store(self) -> BaselineStore:
        gpu = f"{self._gpu['name']}; CUDA {self._gpu['cuda']}; {_GPU_CLOCK}" if self._gpu else ""
        return BaselineStore(self._cache_dir, threads=len(self._spec.cores), gpu=gpu)

    def _described_gpu(self) -> dict[str, Any]:
        return {"gpu": self._gpu["name"]} if self._gpu else {}

    def _has_room(self, facts: dict[str, Any]) -> bool:
        """The memory of a GPU was free when new workers came to it, and no neighbour takes it."""
        roomy = bool(self._gpu) and facts["free_bytes"] >= _ROOMY_SHARE * self._gpu["free_bytes"]
        return roomy and not self._has_neighbours

    def _probe(self, oracle: OracleSide) -> Probe | None:
        """On a GPU, a small piece of work in the reference's process."""
        return (lambda: oracle.ask({"op": "probe"})["ms"]) if self._spec.kind == "cuda" else None

    def close(self) -> None:
        for compiled in self._parked.values():
            compiled.stack.close()
        self._parked.clear()
        self._workers.close()
        self._turns.close()

    def _measure_baseline(self, task: Task) -> Baseline:
        """Eager and torch.compile, interleaved in one fresh process."""
        began = time.monotonic()
        with self._parking:
            parked = self._parked.pop(task.code, None)
        with self._ended_as_work(parked.stack if parked is not None else contextlib.ExitStack()) as stack:
            compiled = parked or self._compiled(task, stack)
            with self._turns.take(compiled.oracle.worker, probe=self._probe(compiled.oracle)) as turn:
                eager, fast = time_pair(compiled.oracle)
            turn.require_calm(eager)
        return Baseline(
            eager_ms=eager.median_ms,
            compile_ms=fast.median_ms,
            eager=eager.to_json(),
            compile=fast.to_json(),
            compile_s=compiled.seconds,
            seconds=time.monotonic() - began,
        )

    @contextlib.contextmanager
    def _ended_as_work(self, stack: contextlib.ExitStack) -> Iterator[contextlib.ExitStack]:
        """Its processes end while no clock runs. Not within the gate of work."""
        try:
            yield stack
        finally:
            with self._work.shared():
                stack.close()

    def _revised(
        self, task: Task, pair: Pair, baseline: Baseline, eager: timing.Series, details: dict[str, Any]
    ) -> Baseline:
        """Times the baseline again where eager has moved too far since: one of the two was taken in a storm."""
        drift = eager.median_ms / baseline.eager_ms
        if 1 / _DRIFT_LIMIT < drift < _DRIFT_LIMIT:
            return baseline
        details["baseline_retimed"] = {"drift": drift, "eager_ms": baseline.eager_ms, "compile_ms": baseline.compile_ms}
        return self._baseline_within(task, pair, fresh=True)

    @contextlib.contextmanager
    def _scratch(self, candidate: Candidate, artifact: Artifact, uid: int | None) -> Iterator[Path]:
        """A folder that the candidate, user `uid`, can read and not write, and no other candidate; gone afterwards."""
        scratch = Path(tempfile.mkdtemp(prefix="candidate-"))
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


@dataclass(frozen=True, slots=True)
class _Compiled:
    """A baseline that is ready to be timed; its process ends with `stack`."""

    oracle: OracleSide
    stack: contextlib.ExitStack
    seconds: float
    """Until torch.compile had compiled the task."""


class _SuspectError(Exception):
    """A verdict that a sick device could have caused as well."""

    def __init__(self, judgement: Judgement) -> None:
        super().__init__(judgement.message)
        self.judgement = judgement
