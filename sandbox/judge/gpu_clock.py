"""The calls that are timed on a GPU, each with a cold cache.

A batch, and the empty one that the supervisor takes off its time:

    head start ─► [wipe the L2 cache ─► event ─► model(inputs) ─► event] x calls ─► device idle
    head start ─► [wipe the L2 cache ─► event ─►               ─► event] x calls ─► device idle

While the cache is wiped the host gets ahead, and before the first call by more, so events tell what the device took and
not how fast Python launches: where the host is late the device waits between two kernels of one call, and that counts.
Waiting is for the whole device: work on other streams, which events do not see, ends inside the clock of the
supervisor, who times the batch from outside and compares.
"""

from __future__ import annotations

import itertools
import statistics
import time
from collections.abc import Callable
from typing import Any

import torch

from sandbox.judge.cuda_runtime import CudaRuntime

_synchronize = torch._C._cuda_synchronize if hasattr(torch._C, "_cuda_synchronize") else None
_WIPE_FACTOR = 3
"""Bytes written between two calls, in sizes of the L2 cache."""
_HEAD_START = 10
"""Wipes before the first call: half a millisecond on an H200, 16 us a call in a batch of 33. Not more, since what a
candidate does on other streams is hidden as long."""
_MAX_CALLS = 64
_PROBES = 24


class DeviceClock:
    """Of one worker and its GPU. Work on other streams than torch's current one is waited for, not seen by events."""

    def __init__(self, runtime: CudaRuntime, l2_bytes: int) -> None:
        self._runtime = runtime
        self._wiped = torch.empty(_WIPE_FACTOR * l2_bytes, dtype=torch.uint8, device="cuda")
        self._events = [
            (torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)) for _ in range(_MAX_CALLS)
        ]
        for start, end in self._events:  # an event is made when it is first recorded
            start.record()
            end.record()

    def run(self, model: Callable[..., Any], calls: list[list[Any]], outputs: list[Any]) -> dict[str, Any]:
        """A batch; what it returns goes into `outputs`. Milliseconds of each call, and what BatchTimes has of them."""
        wiped, size, runtime = self._wiped.data_ptr(), self._wiped.nbytes, self._runtime
        runtime.forget_persisting_lines()
        for _ in range(_HEAD_START):
            runtime.fill(wiped, 0, size)
        began = time.perf_counter()
        for (start, end), arguments in zip(self._events, calls, strict=False):
            runtime.fill(wiped, 0, size)
            start.record()
            outputs.append(model(*arguments))
            end.record()
        launched = time.perf_counter() - began
        _synchronize()  # type: ignore[misc]
        runtime.raise_error()
        timed = self._events[: len(calls)]
        between = [end.elapsed_time(start) for (_, end), (start, _) in itertools.pairwise(timed)]
        return {
            "device_ms": [start.elapsed_time(end) for start, end in timed],
            "wipe_ms": statistics.median(between) if between else 0.0,
            "launch_ms": launched * 1e3 / max(1, len(calls)),
        }

    def probe(self) -> list[float]:
        """Milliseconds of a wipe, seen from the host, several times."""
        times = []
        for _ in range(_PROBES):
            began = time.perf_counter()
            self._runtime.fill(self._wiped.data_ptr(), 0, self._wiped.nbytes)
            _synchronize()  # type: ignore[misc]
            times.append((time.perf_counter() - began) * 1e3)
        return times

    def copy_rate(self, num_bytes: int) -> float:
        """Bytes a millisecond of a copy that moves `num_bytes` through a cold cache, reads and writes together."""
        half = max(1, num_bytes // 2)
        source, target = (torch.zeros(half, dtype=torch.uint8, device="cuda") for _ in range(2))
        calls: list[list[Any]] = [[source] for _ in range(16)]
        times = self.run(target.copy_, calls, [])["device_ms"]
        return 2 * half / min(times)
