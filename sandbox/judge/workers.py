"""Where a device's workers come from: zygotes, what workers are confined to, and a pair that is started ahead.

A CUDA context takes longer to make than most judgements take, so on a GPU the next judgement's two workers make theirs
while this one's checks go on. They are as new as any: nothing of a task or a candidate has been near them, and their
user is another than that of the candidate which runs meanwhile.
"""

from __future__ import annotations

import contextlib
import os
import threading
import time
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

from sandbox.config import JudgeConfig
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

    def close(self) -> None:
        """Both are dead afterwards. They die side by side: taking down a CUDA context takes a while."""
        for worker in (self.candidate, self.oracle):
            worker.begin_end()
        for worker in (self.candidate, self.oracle):
            worker.__exit__()


class Workers:
    """Of one device."""

    def __init__(self, config: JudgeConfig, spec: DeviceSpec) -> None:
        self._config = config
        self._spec = spec
        self._cache_dir = config.baseline_dir.expanduser()
        self._zygote = self._make_zygote("judge")
        self._compile_zygote: Zygote | None = None
        self._starting = threading.Lock()
        self._uids: list[int | None] = [free_uid(), free_uid()] if os.geteuid() == 0 else [None]
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="spare-workers")
        self._spare: Future[Pair] | None = None

    @property
    def uid(self) -> int | None:
        """A user that no started worker has, None where the judge may not change users."""
        return self._uids[-1]

    @property
    def zygote_pid(self) -> int:
        return self._zygote.pid

    def wait_ready(self) -> None:
        """Raises DeviceError."""
        self._zygote.wait_ready()

    @contextlib.contextmanager
    def pair(self) -> Iterator[Pair]:
        """The workers of one judgement, dead at the end of the block; the next are on their way meanwhile."""
        pair = self._take_spare() or self._start_pair(self._next_uid())
        try:
            if self._spec.kind == "cuda" and len(self._uids) > 1:  # where candidates can be told apart
                self._spare = self._thread.submit(self._start_pair, self._next_uid())
            yield pair
        finally:
            pair.close()

    def settle(self) -> None:
        """Waits until the workers on their way have arrived: before a clock starts."""
        if self._spare is not None:
            self._spare.exception()

    def drop_spare(self) -> None:
        """After trouble of the device nothing is used that was there before."""
        spare = self._take_spare()
        if spare is not None:
            spare.close()

    @contextlib.contextmanager
    def oracle(self, *, compiling: bool = False) -> Iterator[tuple[Worker, dict[str, Any]]]:
        """A reference worker alone, and what it said about the device; with TorchInductor where it is to compile."""
        with Worker(self._compiler() if compiling else self._zygote, "oracle", self._oracle_bounds()) as worker:
            yield worker, self.start([worker])

    def start(self, workers: list[Worker]) -> dict[str, Any]:
        """Has new workers start the device, side by side; facts about it. Raises DeviceError."""
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
        return facts

    def close(self) -> None:
        self.drop_spare()
        self._thread.shutdown()
        self._zygote.close()
        if self._compile_zygote is not None:
            self._compile_zygote.close()
            self._compile_zygote = None

    def _take_spare(self) -> Pair | None:
        spare, self._spare = self._spare, None
        if spare is None:
            return None
        try:
            return spare.result()
        except DeviceError:  # the device was in trouble then; whoever asks now finds out whether it still is
            return None

    def _next_uid(self) -> int | None:
        self._uids.append(self._uids.pop(0))
        return self._uids[0]

    def _start_pair(self, uid: int | None) -> Pair:
        with contextlib.ExitStack() as stack:
            oracle = stack.enter_context(Worker(self._zygote, "oracle", self._oracle_bounds()))
            candidate = stack.enter_context(Worker(self._zygote, "runner", self._candidate_bounds(uid)))
            pair = Pair(oracle, candidate, self.start([oracle, candidate]))
            stack.pop_all()
            return pair

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
