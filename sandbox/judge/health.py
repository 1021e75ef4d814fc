"""What workers said of a GPU: how much of its memory was free when they came, and whether it is well."""

from __future__ import annotations

import time
from typing import Any

from sandbox.judge.clocks import slower
from sandbox.judge.spec import DeviceSpec
from sandbox.judge.workers import Workers
from sandbox.types import DeviceError

_MEMORY_RETURNS_S, _HEALTHY_FREE_SHARE, _ENOUGH_BYTES = 30.0, 0.9, 8 << 30
_ROOMY_SHARE = 0.75
"""Of the memory that was free at first: two workers' contexts take a part, another program would take more."""


class GpuHealth:
    """Of one device; a CPU is always well, and nothing is kept of it."""

    def __init__(self, spec: DeviceSpec, workers: Workers) -> None:
        self._spec = spec
        self._workers = workers
        self._free_bytes = 0
        self._usual_ms: dict[str, float] = {}
        self.facts: dict[str, Any] = {}
        """What the first worker of a GPU said about it: gpu.CudaPlacement.start."""

    def ask(self) -> None:
        """Has a first worker say what the device is. Raises DeviceError where it cannot be used."""
        if self._spec.kind == "cuda":
            with self._workers.oracle() as (_, self.facts):
                pass

    def note(self, facts: dict[str, Any]) -> None:
        """Notes how much memory the device had when new workers came to it."""
        self._free_bytes = facts.get("free_bytes", 0)

    def had_room(self, facts: dict[str, Any]) -> bool:
        """New workers, who said `facts`, found memory enough, so that a lack of it is a task's own or a neighbour's."""
        return bool(self.facts) and facts["free_bytes"] >= _ROOMY_SHARE * self.facts["free_bytes"]

    def require_prompt(self, same_ms: dict[str, float]) -> None:
        """Raises DeviceError where a process of the reference was served later than one has been before.

        `same_ms`: of ClocksReport.
        """
        if text := slower(same_ms, self._usual_ms):
            raise DeviceError(f"eager was read too slow: {text}")
        for name, value in same_ms.items():
            if value:
                self._usual_ms[name] = min(value, self._usual_ms.get(name, value))

    def described(self) -> dict[str, Any]:
        """For Judgement.details."""
        return {"gpu": self.facts["name"]} if self.facts else {}

    def require_well(self) -> None:
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
                raise DeviceError(f"{free >> 20} MiB of {self.facts['name']} are free, {int(needed) >> 20} MiB were")
            time.sleep(0.5)  # a killed process's memory comes back after its end
