"""Baselines of a device's tasks: compiled ahead beside other jobs, timed once a machine, timed again in doubt."""

from __future__ import annotations

import contextlib
import functools
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any

from sandbox.baselines import Baseline, BaselineStore
from sandbox.config import JudgeConfig
from sandbox.judge.health import GpuHealth
from sandbox.judge.oracle_side import OracleSide, new_seed
from sandbox.judge.pair import time_pair
from sandbox.judge.spec import DeviceSpec
from sandbox.judge.timing import Series
from sandbox.judge.turn import Turns, probe_of
from sandbox.judge.workers import Workers
from sandbox.types import DeviceError, Task

_DRIFT_LIMIT = 2.0
_GPU_CLOCK = "clock 2"
"""Another one wherever sandbox.judge.gpu_clock takes other times of the same code: stored baselines are taken anew."""
_COMPILE_TIMEOUT_S = 600.0
"""Most of it the process may have stood still, since others were timed."""


class TaskBaselines:
    """Of one device. Not within the gate of its work (Turns.work), except `warm_compile`, which is nobody's work."""

    def __init__(
        self,
        config: JudgeConfig,
        spec: DeviceSpec,
        *,
        workers: Workers,
        turns: Turns,
        health: GpuHealth,
        has_room: Callable[[dict[str, Any]], bool],
    ) -> None:
        """`has_room`: by what new workers said, a lack of memory will be the task's own."""
        self._spec = spec
        self._workers, self._turns, self._health, self._has_room = workers, turns, health, has_room
        self._cache_dir = config.baseline_dir.expanduser()
        self._parking = threading.Lock()
        self._parked: dict[str, _Compiled] = {}
        """By the task's code, what warm_compile has left for `of`."""
        self._known_eager_ms: dict[str, tuple[float, float]] = {}
        """By the task's code, between which times of eager its baseline has stood or been taken again."""

    def of(self, task: Task, *, fresh: bool = False) -> Baseline:
        """From the cache, or measured now; `fresh`: measured now in any case."""
        baseline = self._store.get_or_measure(task, lambda: self._measure(task), fresh=fresh)
        with self._parking:
            parked = self._parked.pop(task.code, None)
        if parked is not None:  # another process has timed it
            with self._ended_as_work(parked.stack):
                pass
        return baseline

    def warm_compile(self, task: Task) -> float:
        """Compiles a task's baseline without timing it; seconds. May run beside other work.

        The process that has it compiled waits for `of`, which then only has to take the times.
        """
        began = time.monotonic()
        if not self._store.has(task):
            with contextlib.ExitStack() as stack:
                compiled = self._compiled(task, stack)
                with self._parking:
                    if task.code not in self._parked:
                        self._parked[task.code] = replace(compiled, stack=stack.pop_all())
        return time.monotonic() - began

    def revised(self, task: Task, baseline: Baseline, eager: Series, details: dict[str, Any]) -> Baseline:
        """Times the baseline again where eager has moved too far since: one of the two was taken in a storm.

        On a CPU once for each such distance: what counts is the ratio of torch.compile to eager, and on a machine whose
        speed comes and goes it is no better for being taken again at each turn. On a GPU raises DeviceError where it
        was `eager`.
        """
        low, high = self._known_eager_ms.get(task.code, (baseline.eager_ms, baseline.eager_ms))
        if low / _DRIFT_LIMIT < eager.median_ms < high * _DRIFT_LIMIT:
            return baseline
        drift = eager.median_ms / baseline.eager_ms
        details["baseline_retimed"] = {"drift": drift, "eager_ms": baseline.eager_ms, "compile_ms": baseline.compile_ms}
        again = self.of(task, fresh=True)
        if self._spec.kind == "cuda" and not 1 / _DRIFT_LIMIT < eager.median_ms / again.eager_ms < _DRIFT_LIMIT:
            raise DeviceError(
                f"task {task.task_id}: eager took {eager.median_ms:.4g} ms beside the candidate and "
                f"{again.eager_ms:.4g} ms in another process just afterwards; no GPU's speed comes and goes like that"
            )
        seen = (low, high, eager.median_ms, again.eager_ms)
        self._known_eager_ms[task.code] = (min(seen), max(seen))
        return again

    def close(self) -> None:
        for compiled in self._parked.values():
            compiled.stack.close()
        self._parked.clear()

    @functools.cached_property
    def _store(self) -> BaselineStore:
        facts = self._health.facts
        gpu = f"{facts['name']}; CUDA {facts['cuda']}; {_GPU_CLOCK}" if facts else ""
        return BaselineStore(self._cache_dir, threads=len(self._spec.cores), gpu=gpu)

    def _compiled(self, task: Task, stack: contextlib.ExitStack) -> _Compiled:
        """A process with eager and torch.compile of a task, which stands still while other jobs are timed."""
        began = time.monotonic()
        worker, facts = stack.enter_context(self._workers.oracle(compiling=True))
        stack.enter_context(self._turns.citizen(worker))
        oracle = OracleSide(worker, task, self._spec.kind, has_room=self._has_room(facts))
        oracle.begin_build()
        oracle.finish_build()
        oracle.ask({"op": "compile", "seed": new_seed()}, limit_s=_COMPILE_TIMEOUT_S)
        return _Compiled(oracle, stack, time.monotonic() - began)

    def _measure(self, task: Task) -> Baseline:
        """Eager and torch.compile, interleaved in one fresh process."""
        began = time.monotonic()
        with self._parking:
            parked = self._parked.pop(task.code, None)
        with self._ended_as_work(parked.stack if parked is not None else contextlib.ExitStack()) as stack:
            compiled = parked or self._compiled(task, stack)
            with self._turns.take(compiled.oracle.worker, probe=probe_of(compiled.oracle)) as turn:
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
        """Its processes end while no clock runs."""
        try:
            yield stack
        finally:
            with self._turns.work.shared():
                stack.close()


@dataclass(frozen=True, slots=True)
class _Compiled:
    """A baseline that is ready to be timed; its process ends with `stack`."""

    oracle: OracleSide
    stack: contextlib.ExitStack
    seconds: float
    """Until torch.compile had compiled the task."""
