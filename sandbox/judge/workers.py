"""Where a device's workers come from: zygotes, what workers are confined to, and pairs that are started ahead.

A CUDA context takes longer to make than most judgements take, so on a GPU the next judgements' workers make theirs
while these go on. They are as new as any: nothing of a task or a candidate has been near them, and no candidate that
runs meanwhile has their user. While a clock runs they stand still.
"""

from __future__ import annotations

import contextlib
import os
import threading
import time
from collections import deque
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

from sandbox.config import JudgeConfig
from sandbox.judge import code_trap
from sandbox.judge.code_gate import CodeGate
from sandbox.judge.code_trap import CodeTrap
from sandbox.judge.hygiene import Bounds, free_uid
from sandbox.judge.spec import DeviceSpec
from sandbox.judge.worker import Worker, WorkerError
from sandbox.judge.zygote import Kind, Zygote
from sandbox.types import DeviceError

_START_TIMEOUT_S = 120.0


@dataclass(frozen=True, slots=True)
class Pair:
    """A reference worker and a candidate worker, started."""

    oracle: Worker
    candidate: Worker
    facts: dict[str, Any]
    """What they said about the device: gpu.CudaPlacement.start."""
    uid: int | None
    """The candidate's user, None where the judge may not change users."""
    code: CodeTrap | None
    """On a CPU, what the candidate can run."""
    stack: contextlib.ExitStack
    """Ends both."""

    def close(self) -> None:
        """Both are dead afterwards. They die side by side: taking down a CUDA context takes a while."""
        for worker in (self.candidate, self.oracle):
            worker.begin_end()
        self.stack.close()


class Workers:
    """Of one device."""

    def __init__(self, config: JudgeConfig, spec: DeviceSpec) -> None:
        self._config = config
        self._spec = spec
        self._cache_dir = config.baseline_dir.expanduser()
        self._zygote = self._make_zygote("judge")
        self._has_traps = spec.kind == "cpu" and code_trap.trap_file() >= 0
        if self._has_traps:
            threading.Thread(target=code_trap.look_up_ahead, daemon=True).start()
        self._compile_zygote: Zygote | None = None
        self._starting = threading.Lock()
        self.tells_apart = os.geteuid() == 0
        """Candidates have users of their own, so that none can touch another."""
        jobs = config.jobs_per_device
        # jobs and pairs ahead of them, and one for a pair that ends while its successor starts
        self._uids = deque(free_uid() if self.tells_apart else None for _ in range(2 * jobs + 1))
        self._threads = ThreadPoolExecutor(jobs, thread_name_prefix="spare-workers")
        self._spares: deque[Future[Pair]] = deque()
        self._bystanders: set[Worker] = set()
        self._forking = threading.Lock()

    @contextlib.contextmanager
    def user(self) -> Iterator[int | None]:
        """A user that no worker has, for the block; None where the judge may not change users."""
        uid = self._uids.popleft()
        try:
            yield uid
        finally:
            self._uids.append(uid)

    @property
    def zygote_pid(self) -> int:
        return self._zygote.pid

    def wait_ready(self) -> None:
        """Raises DeviceError."""
        self._zygote.wait_ready()

    @contextlib.contextmanager
    def pair(self) -> Iterator[Pair]:
        """The workers of one judgement, dead at the end of the block; the next are on their way meanwhile."""
        pair = self._take_spare() or self._start_pair()
        try:
            if self._spec.kind == "cuda" and self.tells_apart:
                self._spares.append(self._threads.submit(self._start_pair))
            yield pair
        finally:
            pair.close()

    @contextlib.contextmanager
    def bystanders_stopped(self, *, but: tuple[Worker, ...]) -> Iterator[None]:
        """Workers that start, or compile, stand still, and no more are forked; `but`: those that are timed."""
        with self._forking:
            stopped = [worker for worker in self._bystanders if worker not in but]
            try:
                for worker in stopped:
                    with contextlib.suppress(ProcessLookupError):  # it has failed to start
                        worker.stop()
                yield
            finally:
                for worker in stopped:
                    with contextlib.suppress(ProcessLookupError):
                        worker.resume()

    def drop_spares(self) -> None:
        """After trouble of the device nothing is used that was there before."""
        while self._spares:
            spare = self._take_spare()
            if spare is not None:
                spare.close()

    @contextlib.contextmanager
    def oracle(self, *, compiling: bool = False) -> Iterator[tuple[Worker, dict[str, Any]]]:
        """A reference worker alone, and what it said about the device; with TorchInductor where it is to compile.

        A bystander (`bystanders_stopped`) until it ends.
        """
        with contextlib.ExitStack() as stack:
            zygote = self._compiler() if compiling else self._zygote
            worker = self._fork(stack, zygote, "oracle", self._oracle_bounds())
            yield worker, self.start([worker])

    def start(self, workers: list[Worker], candidate: Worker | None = None) -> dict[str, Any]:
        """Has new workers start the device, side by side; facts about it. Raises DeviceError.

        `candidate`: that of them which gets traps.
        """
        facts: dict[str, Any] = {}
        try:
            for worker in workers:
                traps = [code_trap.trap_file()] if self._has_traps and worker is candidate else None
                worker.send({"op": "start", "gate": traps is not None and CodeGate.is_possible()}, fds=traps)
            for worker in workers:
                facts = worker.receive(deadline=time.monotonic() + _START_TIMEOUT_S)
        except WorkerError as error:
            said = getattr(error, "stderr", "") or getattr(error, "traceback", "")
            device = f"GPU {self._spec.visible}" if self._spec.visible else "the CPU"
            raise DeviceError(f"a new worker cannot use {device}: {error} {said}") from error
        return facts

    def close(self) -> None:
        self.drop_spares()
        self._threads.shutdown()
        self._zygote.close()
        if self._compile_zygote is not None:
            self._compile_zygote.close()
            self._compile_zygote = None

    def _take_spare(self) -> Pair | None:
        try:
            return self._spares.popleft().result()
        except IndexError:
            return None
        except DeviceError:  # the device was in trouble then; whoever asks now finds out whether it still is
            return None

    def _start_pair(self) -> Pair:
        with contextlib.ExitStack() as stack:
            uid = stack.enter_context(self.user())
            oracle = self._fork(stack, self._zygote, "oracle", self._oracle_bounds())
            candidate = self._fork(stack, self._zygote, "runner", self._candidate_bounds(uid))
            facts = self.start([oracle, candidate], candidate)
            code = self._code_of(candidate, facts.pop("listener", None))
            self._attend_to(oracle, candidate)
            return Pair(oracle, candidate, facts, uid, code, stack.pop_all())

    def _code_of(self, candidate: Worker, listener: int | None) -> CodeTrap | None:
        if not self._has_traps:
            return None
        return CodeTrap(candidate, CodeGate.of(candidate.pid, listener))

    def _fork(self, stack: contextlib.ExitStack, zygote: Zygote, role: str, bounds: Bounds) -> Worker:
        """A bystander, dead when the stack is closed."""
        zygote.wait_ready()  # seconds, the first time
        with self._forking:
            worker = stack.enter_context(Worker(zygote, role, bounds))
            self._bystanders.add(worker)
        stack.callback(self._attend_to, worker)
        return worker

    def _attend_to(self, *workers: Worker) -> None:
        """From now on somebody else sees to it that they stand still."""
        with self._forking:
            self._bystanders.difference_update(workers)

    def _candidate_bounds(self, uid: int | None) -> Bounds:
        cores = self._spec.cores
        return Bounds(
            cores=cores,
            memory_bytes=self._config.memory_mb << 20,
            uid=uid,
            write_files=False,
            cpu_s=int(self._config.timeout_s * (len(cores) + 1)) + 5,
            device=self._spec.kind,
        )

    def _oracle_bounds(self) -> Bounds:
        return Bounds(
            cores=self._spec.cores,
            memory_bytes=self._config.memory_mb << 21,
            uid=None,
            write_files=True,
            device=self._spec.kind,
        )

    def _compiler(self) -> Zygote:
        with self._starting:
            if self._compile_zygote is None:
                self._compile_zygote = self._make_zygote("compile")
            return self._compile_zygote

    def _make_zygote(self, kind: Kind) -> Zygote:
        return Zygote(
            kind, num_threads=len(self._spec.cores), cache_dir=self._cache_dir / "inductor", gpu=self._spec.visible
        )
