"""A batch of calls, run by a worker that was stopped until then, and what it took."""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import Any

from sandbox.judge.worker import Worker


@dataclass(frozen=True, slots=True)
class BatchTimes:
    """What one batch took."""

    seconds: float
    """On the supervisor's clock, from waking the process to its word that it is done."""
    calls_ms: list[float]
    """Each call by the device's events, where it has some."""
    wipe_ms: float
    """By the same, the median time from the end of a call to the start of the next; 0 where there is none."""
    launch_ms: float
    """Of the process's own clock, what launching a call took; 0 where nobody says."""


def run_batch(worker: Worker, timeout_s: float) -> BatchTimes:
    """Wakes a prepared, stopped worker and waits for its answer. Raises a WorkerError."""
    deadline = time.monotonic() + timeout_s
    worker.spread()
    worker.send({"op": "go"})
    began = time.perf_counter()
    worker.wake()
    reply = worker.receive(deadline=deadline)
    seconds = time.perf_counter() - began
    times = _numbers([reply.get("wipe_ms", 0.0), reply.get("launch_ms", 0.0)]) or [0.0, 0.0]
    return BatchTimes(seconds, _numbers(reply.get("device_ms", [])), *times)


def _numbers(values: Any) -> list[float]:
    """[] where a reply makes no sense."""
    if not isinstance(values, list) or not all(isinstance(value, (int, float)) for value in values):
        return []
    return [float(value) for value in values]
