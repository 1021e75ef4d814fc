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
import functools
import os
import shutil
import tempfile
import threading
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

from sandbox.baselines import Baseline, BaselineStore
from sandbox.config import JudgeConfig
from sandbox.judge import sanitize, timing
from sandbox.judge.arena import MemoryAccessError
from sandbox.judge.candidate_side import CandidateSide, RejectedError
from sandbox.judge.fits import check_fits
from sandbox.judge.hygiene import Bounds, free_uid
from sandbox.judge.oracle_side import OracleSide, new_seed
from sandbox.judge.ownwork import refuse_observed
from sandbox.judge.pair import time_pair
from sandbox.judge.run import Run
from sandbox.judge.spec import DeviceSpec
from sandbox.judge.worker import Worker, WorkerError
from sandbox.judge.zygote import Kind, Zygote
from sandbox.quiet import QuietError, QuietLease
from sandbox.reward import REJECTED, eq1
from sandbox.skill import load_skill
from sandbox.types import Artifact, Candidate, DeviceError, Judgement, Outcome, Sanitized, Task

_DRIFT_LIMIT = 2.0
_START_TIMEOUT_S = 120.0
_MEMORY_RETURNS_S, _HEALTHY_FREE_SHARE = 30.0, 0.9
_ROOMY_SHARE = 0.75
"""Of the memory that was free at first: two workers' contexts take a part, another program would take more."""


class DeviceJudge:
    """One device. It does one job at a time; only `warm_compile` may run in another thread beside it."""

    def __init__(self, config: JudgeConfig, spec: DeviceSpec, quiet: QuietLease | None = None) -> None:
        self._config = config
        self._spec = spec
        self._quiet = quiet
        self._cache_dir = config.baseline_dir.expanduser()
        self._gpu: dict[str, Any] = {}
        """What the first worker of a GPU said about it."""
        self._zygote = self._make_zygote("judge")
        self._compile_zygote: Zygote | None = None
        self._has_room = False
        self._starting = threading.Lock()
        self._uid = free_uid() if os.geteuid() == 0 else None

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
        try:
            return self._judge(task, candidate, artifact, skill, timed)
        except _SuspectError as first:
            self._require_healthy()
            try:
                judgement = self._judge(task, candidate, artifact, skill, timed)
            except _SuspectError as second:
                judgement = second.judgement
            return replace(judgement, details=judgement.details | {"first_try": first.judgement.message})

    def _judge(self, task: Task, candidate: Candidate, artifact: Artifact, skill: str, timed: bool) -> Judgement:
        phases: dict[str, float] = {}
        began = time.monotonic()
        with self._scratch(candidate, artifact) as scratch, self._workers() as (oracle_worker, candidate_worker):
            oracle = OracleSide(oracle_worker, task, self._spec.kind, has_room=self._has_room)
            side = CandidateSide(candidate_worker, self._config.timeout_s, self._config.protocol, self._spec.kind)
            if self._config.protocol == "hardened":
                side.observed = refuse_observed
            run = Run(self._config, oracle, side, phases)
            details: dict[str, Any] = {"protocol": self._config.protocol} | self._described_gpu()
            try:
                run.load(scratch, artifact, load_skill(skill).extension_module)
                report = run.check()
                details["checks"] = report.to_json()
                if not timed:
                    text = f"correct in {report.num_checks} checks; not timed"
                    return _judgement(Outcome.CORRECT, None, text, details, phases, began)
                with run.phase("baseline_s"):
                    baseline = self.baseline_of(task)
                with self._hold_quiet(oracle_worker, candidate_worker):
                    candidate_series, eager_series = run.time()
                run.verify_timed()
                if run.shares is not None:
                    details["shares"] = run.shares.to_json()
                    if self._config.protocol == "hardened":
                        run.check_shares(candidate_series)
                if self._spec.kind == "cuda":
                    details["outside_ms"] = run.outside_ms
                    if self._config.protocol == "hardened":
                        details["floor"] = run.check_floor(candidate_series)
                with run.phase("baseline_s"):
                    baseline = self._revised(task, baseline, eager_series, details)
            except RejectedError as rejection:
                judgement = _judgement(rejection.outcome, REJECTED, rejection.message, details, phases, began)
                if rejection.device_trouble:
                    raise _SuspectError(judgement) from rejection
                return judgement
            except MemoryAccessError as error:
                raise DeviceError(
                    f"the judge cannot read its workers' memory ({error}); it needs to run as root with "
                    "CAP_SYS_PTRACE, or as an ordinary user"
                ) from error
        return self._timed_judgement(baseline, candidate_series, eager_series, details, phases, began)

    def _require_healthy(self) -> None:
        """Raises DeviceError where a new worker cannot compute on the device, or where its memory stays taken."""
        if self._spec.kind == "cpu":
            return
        deadline = time.monotonic() + _MEMORY_RETURNS_S
        while True:
            with self._oracle_worker(self._zygote) as worker:
                free, was_free = self._start([worker])["free_bytes"], self._gpu["free_bytes"]
            if free >= _HEALTHY_FREE_SHARE * was_free:
                return
            if time.monotonic() > deadline:
                raise DeviceError(f"{free >> 20} MiB of {self._gpu['name']} are free, {was_free >> 20} were at first")
            time.sleep(0.5)  # a killed process's memory comes back after its end

    def baseline(self, task: Task) -> tuple[float, float]:
        """(eager_ms, compile_ms) of a task, from the cache or measured now."""
        baseline = self.baseline_of(task)
        return baseline.eager_ms, baseline.compile_ms

    def baseline_of(self, task: Task, *, fresh: bool = False) -> Baseline:
        return self._store.get_or_measure(task, lambda: self._measure_baseline(task), fresh=fresh)

    def warm_compile(self, task: Task) -> float:
        """Compiles a task into the kernel cache without timing it; seconds. May run beside other work."""
        began = time.monotonic()
        if not self._store.has(task):
            with self._oracle_worker(self._compiler()) as worker, self._quiet_citizen(worker):
                self._start([worker])
                oracle = OracleSide(worker, task, self._spec.kind, has_room=self._has_room)
                oracle.build(perturb=False)
                oracle.ask({"op": "compile", "seed": new_seed()})
        return time.monotonic() - began

    def sanitize(self, task: Task, candidate: Candidate, artifact: Artifact, *, skill: str) -> Sanitized:
        """Runs a candidate once under compute-sanitizer, as the candidate's user. Raises like `judge`."""
        check_fits(skill, artifact, self._spec, self._gpu)
        if self._spec.kind != "cuda":
            return Sanitized(clean=False, text="compute-sanitizer looks at CUDA kernels; this judge has no GPU")
        with self._scratch(candidate, artifact) as scratch:
            return sanitize.run(task, artifact, scratch, load_skill(skill).extension_module, self._spec, self._uid)

    def wait_ready(self) -> None:
        """Raises DeviceError where the device cannot be used."""
        self._zygote.wait_ready()
        if self._spec.kind == "cuda":
            with self._oracle_worker(self._zygote) as worker:
                self._gpu = self._start([worker])

    @functools.cached_property
    def _store(self) -> BaselineStore:
        gpu = f"{self._gpu['name']}; CUDA {self._gpu['cuda']}" if self._gpu else ""
        return BaselineStore(self._cache_dir, threads=len(self._spec.cores), gpu=gpu)

    def _described_gpu(self) -> dict[str, Any]:
        return {"gpu": self._gpu["name"]} if self._gpu else {}

    def _start(self, workers: list[Worker]) -> dict[str, Any]:
        """Has new workers start the device, side by side; facts about it. Nothing of a candidate runs yet."""
        facts: dict[str, Any] = {}
        try:
            for worker in workers:
                worker.send({"op": "start"})
            for worker in workers:
                facts = worker.receive(deadline=time.monotonic() + _START_TIMEOUT_S)
        except WorkerError as error:
            said = getattr(error, "stderr", "") or getattr(error, "traceback", "")
            device = f"GPU {self._spec.visible}" if self._spec.visible else "the CPU"
            raise DeviceError(f"a new worker cannot use {device}: {error} {said}") from error
        self._has_room = bool(self._gpu) and facts["free_bytes"] >= _ROOMY_SHARE * self._gpu["free_bytes"]
        return facts

    def close(self) -> None:
        self._zygote.close()
        if self._compile_zygote is not None:
            self._compile_zygote.close()
            self._compile_zygote = None
        if self._quiet is not None:
            self._quiet.close()

    def _compiler(self) -> Zygote:
        with self._starting:
            if self._compile_zygote is None:
                self._compile_zygote = self._make_zygote("compile")
            return self._compile_zygote

    def _make_zygote(self, kind: Kind) -> Zygote:
        return Zygote(
            kind, num_threads=len(self._spec.cores), cache_dir=self._cache_dir / "inductor", gpu=self._spec.visible
        )

    @contextlib.contextmanager
    def _hold_quiet(self, *timed: Worker) -> Iterator[None]:
        """Everything registered stands still, except the workers that are timed."""
        if self._quiet is None:
            yield
            return
        for worker in timed:
            self._quiet.protect(worker.pid)
        try:
            with self._quiet.hold():
                yield
        except QuietError as error:
            raise DeviceError(str(error)) from error
        finally:
            for worker in timed:
                self._quiet.unprotect(worker.pid)

    @contextlib.contextmanager
    def _quiet_citizen(self, worker: Worker) -> Iterator[None]:
        """A worker that stands still while another job is timed."""
        if self._quiet is None:
            yield
            return
        self._quiet.register(worker.pid)
        try:
            yield
        finally:
            self._quiet.unregister(worker.pid)

    def _measure_baseline(self, task: Task) -> Baseline:
        """Eager and torch.compile, interleaved in one fresh process."""
        began = time.monotonic()
        with self._oracle_worker(self._compiler()) as worker:
            self._start([worker])
            oracle = OracleSide(worker, task, self._spec.kind, has_room=self._has_room)
            oracle.build(perturb=False)
            oracle.ask({"op": "compile", "seed": new_seed()})
            compiled_s = time.monotonic() - began
            with self._hold_quiet(worker):
                eager, compiled = time_pair(oracle)
        return Baseline(
            eager_ms=eager.median_ms,
            compile_ms=compiled.median_ms,
            eager=eager.to_json(),
            compile=compiled.to_json(),
            compile_s=compiled_s,
            seconds=time.monotonic() - began,
        )

    def _revised(self, task: Task, baseline: Baseline, eager: timing.Series, details: dict[str, Any]) -> Baseline:
        """Times the baseline again where eager has moved too far since: one of the two was taken in a storm."""
        drift = eager.median_ms / baseline.eager_ms
        if 1 / _DRIFT_LIMIT < drift < _DRIFT_LIMIT:
            return baseline
        details["baseline_retimed"] = {"drift": drift, "eager_ms": baseline.eager_ms, "compile_ms": baseline.compile_ms}
        return self.baseline_of(task, fresh=True)

    def _timed_judgement(
        self,
        baseline: Baseline,
        candidate: timing.Series,
        eager: timing.Series,
        details: dict[str, Any],
        phases: dict[str, float],
        began: float,
    ) -> Judgement:
        """Scales the stored time of torch.compile to the machine's speed of this minute.

        torch.compile is timed once a task, against eager in the same process. Eager is timed again beside every
        candidate; its change since then is the machine's (frequency, neighbours), which compiled code shares. So
        compile_ms = stored compile_ms * (eager now / eager then), that is, the stored ratio is what counts.
        """
        drift = eager.median_ms / baseline.eager_ms
        compile_ms = baseline.compile_ms * drift
        reward = eq1(candidate.median_ms, eager.median_ms, compile_ms)
        details |= {
            "candidate": candidate.to_json(),
            "eager": eager.to_json(),
            "drift": drift,
            "stored_eager_ms": baseline.eager_ms,
            "stored_compile_ms": baseline.compile_ms,
            "speedup_eager": eager.median_ms / candidate.median_ms,
            "speedup_compile": compile_ms / candidate.median_ms,
            "round_ratios": [e / c for e, c in zip(eager.values_ms, candidate.values_ms, strict=True)],
        }
        message = (
            f"correct; {candidate.median_ms:.4g} ms (quartiles {_quartiles(candidate)}), "
            f"torch eager {eager.median_ms:.4g} ms: {eager.median_ms / candidate.median_ms:.2f}x, "
            f"torch.compile {compile_ms:.4g} ms: {compile_ms / candidate.median_ms:.2f}x"
        )
        judgement = _judgement(Outcome.CORRECT, reward, message, details, phases, began)
        return Judgement(
            outcome=judgement.outcome,
            reward=reward,
            message=message,
            candidate_ms=candidate.median_ms,
            eager_ms=eager.median_ms,
            compile_ms=compile_ms,
            details=judgement.details,
        )

    @contextlib.contextmanager
    def _workers(self) -> Iterator[tuple[Worker, Worker]]:
        with (
            self._oracle_worker(self._zygote) as oracle,
            Worker(
                self._zygote,
                "runner",
                Bounds(
                    cores=self._spec.cores,
                    memory_bytes=self._config.memory_mb << 20,
                    uid=self._uid,
                    write_files=False,
                    cpu_s=int(self._config.timeout_s * (len(self._spec.cores) + 1)) + 5,
                    device=self._spec.kind,
                ),
            ) as candidate,
        ):
            self._start([oracle, candidate])
            yield oracle, candidate

    def _oracle_worker(self, zygote: Zygote) -> Worker:
        return Worker(
            zygote,
            "oracle",
            Bounds(
                cores=self._spec.cores,
                memory_bytes=self._config.memory_mb << 21,
                uid=None,
                write_files=True,
                device=self._spec.kind,
            ),
        )

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


def _judgement(
    outcome: Outcome,
    reward: float | None,
    message: str,
    details: dict[str, Any],
    phases: dict[str, float],
    began: float,
) -> Judgement:
    phases["total_s"] = time.monotonic() - began
    return Judgement(outcome=outcome, reward=reward, message=message, details=details | {"phases": phases})


def _quartiles(series: timing.Series) -> str:
    record = series.to_json()
    return f"{record['p25_ms']:.4g}–{record['p75_ms']:.4g}"
