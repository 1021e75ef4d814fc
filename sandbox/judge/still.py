"""Is the GPU still? A small piece of work takes as long as it does at best, again and again.

A process that is stopped launches nothing more, but what it has launched goes on, and another process that nobody has
stopped may be at work. On a GPU that others use, a piece of work waits for its turn: its time, from launch to end on
the host's clock, is then a multiple of what it takes on one that is idle. Counters of utilisation would tell as well,
but a sixth of a second late.
"""

from __future__ import annotations

import math
import statistics
import time
from collections.abc import Callable

TIMEOUT_S = 3.0
_SLOWER, _SLACK_MS = 1.5, 0.05
_LATE_MS = 0.3
_ALLOWED_LATE = 0.15
"""Part of the probes that may come late: the host has hiccups too."""


class Stillness:
    """What one GPU's probe took at best, and the question whether it does now."""

    def __init__(self) -> None:
        self.best_ms = math.inf

    def is_still(self, probe_ms: list[float]) -> bool:
        """`probe_ms`: times of one series of probes, also remembered if they are the best so far."""
        middle = statistics.median(probe_ms)
        self.best_ms = min(self.best_ms, middle)
        late = sum(each > self.best_ms + _LATE_MS for each in probe_ms)
        return middle <= _SLOWER * self.best_ms + _SLACK_MS and late <= _ALLOWED_LATE * len(probe_ms)

    def wait(self, probe: Callable[[], list[float]], *, timeout_s: float = TIMEOUT_S) -> tuple[bool, float]:
        """Probes until the GPU is still, or time is up: whether it is, and the seconds that took."""
        began = time.monotonic()
        while True:
            still = self.is_still(probe())
            waited_s = time.monotonic() - began
            if still or waited_s > timeout_s:
                return still, waited_s
