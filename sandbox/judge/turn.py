"""A turn at the clock: who else is on the device stands still, and a GPU is seen to have come to rest.

    wait for the device's other jobs ─► stop the registered processes, and workers that start ─►
        (GPU) probe until what they had launched is done ─► timed section ─► resume

The device's other jobs stop by themselves (sandbox.judge.gate), and go on last. The lease (sandbox.quiet) bounds the
turn and ends it when its holder dies. On a GPU the probe before and after tells whether anybody is left at work whom
nobody has stopped: then times are only used where they hardly spread.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from typing import Any

from sandbox.judge.gate import Gate
from sandbox.judge.oracle_side import OracleSide
from sandbox.judge.still import Stillness
from sandbox.judge.timing import Series
from sandbox.judge.worker import Worker
from sandbox.judge.workers import Workers
from sandbox.quiet import QuietError, QuietLease
from sandbox.types import DeviceError

_CALM = 1.25
"""Upper over lower quartile of eager's rounds up to which times count although the GPU was not seen at rest."""
Probe = Callable[[], list[float]]


@dataclass(slots=True)
class TurnReport:
    """What became of one turn, for Judgement.details."""

    frozen: int = 0
    """Registered processes that were stopped."""
    waited_s: float = 0.0
    """For other jobs on the device."""
    seconds: float = 0.0
    """From the first process stopping to the last going on."""
    settle_s: float = 0.0
    """Of these, until a GPU was at rest."""
    still: bool = True
    """It was at rest before and after."""

    def to_json(self) -> dict[str, Any]:
        return asdict(self)

    def require_calm(self, eager: Series) -> None:
        """Raises DeviceError where others were at work on the GPU and it shows."""
        if not self.still and eager.spread > _CALM:
            raise DeviceError(
                f"somebody else is at work on the GPU: torch eager's quartiles lie {eager.spread:.2f} apart. Register "
                "its processes with the run's quiet lease and leave judge.quiet on, or give the judge a GPU of its own"
            )


def probe_of(oracle: OracleSide) -> Probe | None:
    """On a GPU, a small piece of work in the reference's process."""
    return (lambda: oracle.ask({"op": "probe"})["ms"]) if oracle.device == "cuda" else None


class Turns:
    """Of one device."""

    def __init__(self, quiet: QuietLease | None, workers: Workers) -> None:
        """`quiet` None: nobody is stopped but the device's own jobs and workers."""
        self._quiet = quiet
        self._workers = workers
        self.work = Gate()
        """Shared by all that jobs do on the device; alone while a clock runs."""
        self._stillness = Stillness()

    @contextlib.contextmanager
    def take(self, *timed: Worker, probe: Probe | None) -> Iterator[TurnReport]:
        """Everything registered stands still, except the workers that are timed. `probe`: on a GPU, milliseconds that
        a small piece of work took, several times. Not within `work`. Raises DeviceError."""
        report, began = TurnReport(), time.monotonic()
        with self.work.alone():
            report.waited_s = time.monotonic() - began
            with self._stopped(timed, report), self._workers.bystanders_stopped(but=timed):
                if probe is not None:
                    report.still, report.settle_s = self._stillness.wait(probe)
                yield report
                if probe is not None:
                    report.still = self._stillness.is_still(probe()) and report.still

    @contextlib.contextmanager
    def _stopped(self, timed: tuple[Worker, ...], report: TurnReport) -> Iterator[None]:
        if self._quiet is None:
            yield
            return
        for worker in timed:
            self._quiet.protect(worker.pid)
        began = time.monotonic()
        try:
            with self._quiet.hold() as report.frozen:
                yield
        except QuietError as error:
            raise DeviceError(str(error)) from error
        finally:
            report.seconds = time.monotonic() - began
            for worker in timed:
                self._quiet.unprotect(worker.pid)

    @contextlib.contextmanager
    def citizen(self, worker: Worker) -> Iterator[None]:
        """A worker that stands still while another job is timed."""
        if self._quiet is None:
            yield
            return
        self._quiet.register(worker.pid)
        try:
            yield
        finally:
            self._quiet.unregister(worker.pid)

    def close(self) -> None:
        if self._quiet is not None:
            self._quiet.close()
