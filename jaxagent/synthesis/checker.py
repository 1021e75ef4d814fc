"""Runs candidate tasks through every filter, cheap ones first, and keeps the evidence.

text ─► eager: behaviour, time ─► duplicates ─► KernelBench ─► torch.compile ─► kept
"""

from __future__ import annotations

import hashlib
import logging
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import dataclass, field
from typing import Any, Protocol

from jaxagent.synthesis.contamination import KernelBench
from jaxagent.synthesis.duplicates import DuplicateIndex
from jaxagent.synthesis.reasons import FilterConfig, Finding
from jaxagent.synthesis.run_rules import compile_fails, eager_finding
from jaxagent.synthesis.static_rules import static_finding
from sandbox.config import JudgeConfig
from sandbox.judge.spec import DeviceSpec, device_spec
from sandbox.taskcheck.config import ProbeConfig
from sandbox.taskcheck.probe import Evidence, TaskProber
from sandbox.types import DeviceError

logger = logging.getLogger(__name__)
_MAX_RETRIES = 2


class Prober(Protocol):
    """What runs a task: sandbox.taskcheck.probe.TaskProber, here or behind a Ray actor."""

    def eager(self, code: str) -> Evidence: ...

    def compiled(self, code: str) -> Evidence: ...

    def close(self) -> None: ...


class EvidenceStore(Protocol):
    """Where evidence is kept, by phase ("eager" or "compile") and content of the code."""

    def get(self, phase: str, key: str) -> Evidence | None: ...

    def put(self, phase: str, key: str, evidence: Evidence) -> None: ...


class MemoryStore:
    """Evidence of this process alone."""

    def __init__(self) -> None:
        self._kept: dict[tuple[str, str], Evidence] = {}

    def get(self, phase: str, key: str) -> Evidence | None:
        return self._kept.get((phase, key))

    def put(self, phase: str, key: str, evidence: Evidence) -> None:
        self._kept[phase, key] = evidence


@dataclass(slots=True)
class CheckedTask:
    """A candidate, and what was found. Kept where `finding` is None."""

    name: str
    code: str
    finding: Finding | None = None
    evidence: Evidence = field(default_factory=dict)
    neighbours: list[tuple[str, float]] = field(default_factory=list)

    @property
    def kept(self) -> bool:
        return self.finding is None


Report = Callable[[str, int, int], None]
"""Called with a phase, how many of its tasks are done, and how many there are."""


class TaskChecker:
    """Filters sets of tasks; several calls of `check` are one set as far as duplicates go. Close it, or use `with`."""

    def __init__(
        self,
        filters: FilterConfig,
        probe: ProbeConfig,
        *,
        store: EvidenceStore | None = None,
        probers: Sequence[Prober] | None = None,
        report: Report = lambda phase, done, total: None,
    ) -> None:
        """Raises KernelBenchError for a folder without problems."""
        self._filters, self._probe = filters, probe
        self._store = store or MemoryStore()
        self._report = report
        self._duplicates = DuplicateIndex(filters)
        self._kernelbench = KernelBench(filters.kernelbench) if filters.kernelbench is not None else None
        self._probers: list[Prober] = list(probers) if probers is not None else []

    def __enter__(self) -> TaskChecker:
        return self

    def __exit__(self, *exc: object) -> None:
        for prober in self._probers:
            prober.close()
        self._probers.clear()

    def check(self, candidates: Iterable[tuple[str, str]]) -> list[CheckedTask]:
        """`candidates`: unique names and code. Raises DeviceError where our own processes fail repeatedly."""
        tasks = [CheckedTask(name, code, static_finding(code, self._filters)) for name, code in candidates]
        self._gather("eager", [task for task in tasks if task.kept])
        for task in tasks:
            if task.kept:
                task.finding = eager_finding(task.evidence, self._filters)
            if task.kept:
                self._compare(task)
        self._gather("compile", [task for task in tasks if task.kept])
        for task in tasks:
            if task.kept:
                task.finding = compile_fails(task.evidence["compiled"], self._filters)
        return tasks

    def _compare(self, task: CheckedTask) -> None:
        """With what is kept so far, and with KernelBench."""
        task.finding = self._duplicates.exact(task.code) or self._duplicates.near(task.code, task.evidence)
        if task.kept and self._kernelbench is not None:
            task.finding = self._kernelbench.similar(task.code, self._filters)
            task.neighbours = self._kernelbench.neighbours(task.code)
        if task.kept:
            self._duplicates.add(task.name, task.code, task.evidence)

    def _gather(self, phase: str, tasks: list[CheckedTask]) -> None:
        """Evidence of a phase for every task, from the store or from running it."""
        missing = []
        for task in tasks:
            found = self._store.get(phase, content_key(task.code))
            if found is None:
                missing.append(task)
            else:
                _attach(task, phase, found)
        if not missing:
            return
        slots = self._slots()
        num_threads = len(slots) if phase == "eager" else max(len(slots), self._probe.num_compilers)
        done = len(tasks) - len(missing)
        self._report(phase, done, len(tasks))
        with ThreadPoolExecutor(num_threads) as pool:
            work = {
                pool.submit(self._run, phase, task.code, slots[index % len(slots)]): task
                for index, task in enumerate(missing)
            }
            try:
                for result in as_completed(work):
                    task, evidence = work[result], result.result()
                    self._store.put(phase, content_key(task.code), evidence)
                    _attach(task, phase, evidence)
                    done += 1
                    self._report(phase, done, len(tasks))
            finally:
                for result in work:
                    result.cancel()

    def _run(self, phase: str, code: str, prober: Prober) -> Evidence:
        for attempt in range(_MAX_RETRIES + 1):
            try:
                return prober.eager(code) if phase == "eager" else prober.compiled(code)
            except DeviceError as error:
                if attempt == _MAX_RETRIES:
                    raise
                logger.warning("a process of the task check failed, once more: %s", error)
        raise AssertionError("unreachable")

    def _slots(self) -> list[Prober]:
        if not self._probers:
            self._probers += [TaskProber(self._probe, spec) for spec in device_specs(self._probe)]
        return self._probers


def device_specs(probe: ProbeConfig) -> list[DeviceSpec]:
    """The devices of this machine that tasks run on. Raises ValueError where there are too few cores or GPUs."""
    judge = JudgeConfig(device=probe.device, num_devices=probe.num_devices, cores_per_device=probe.cores_per_device)
    return [device_spec(judge, index) for index in range(probe.num_devices)]


def content_key(code: str) -> str:
    return hashlib.sha256(code.encode()).hexdigest()


def _attach(task: CheckedTask, phase: str, evidence: Evidence) -> None:
    if phase == "eager":
        task.evidence = dict(evidence)
    else:
        task.evidence["compiled"] = evidence


def evidence_row(task: CheckedTask) -> dict[str, Any]:
    """What is stored about a task beside its code."""
    return {
        "kept": task.kept,
        "reason": None if task.finding is None else str(task.finding.reason),
        "detail": None if task.finding is None else task.finding.detail,
        "evidence": task.evidence,
        "neighbours": task.neighbours,
    }
