"""Whose code runs while a candidate is called: its own, the C runtime's, torch's, or Python's.

Symbols and operators say what a candidate may call by name. What it does call is seen from outside: its process is
stopped at random moments of a batch, and for every thread that was running the kernel tells where its program counter
stood. The process notices nothing but the time that has passed.

What computes in torch's libraries (libraries.py) is nobody's business, and neither is code that no file holds, as
oneDNN and MKL generate it. Here it is told whoever comes to it and however; code_trap.py takes most of it away.
"""

from __future__ import annotations

import bisect
import os
import random
import time
from collections import Counter
from typing import Any

from sandbox.judge import libraries
from sandbox.judge.code_names import code_names
from sandbox.judge.worker import Worker

_PAUSE_S = (0.00005, 0.0003)
"""Between two looks."""
_LOOKS = 40
"""In one batch, at most."""
_FEW, WANTED = 24, 54
"""Samples in which something was computed: with fewer nothing is refused, more are not looked for."""
_BUSY_ELSEWHERE = 4 * WANTED
"""Samples of threads that do not wait, Python's among them, after which those of computing are as many as they get."""
_FEW_FOREIGN, _FOREIGN_SHARE = 4, 0.03
"""Samples of foreign computing, and their share of all computing, from which on it is refused."""
_OVERHEAD_MS = 0.1
"""A call may spend that long in torch for allocating and dispatching, however short its own work is."""


class Shares:
    """Samples of one judgement, by owner: own, runtimes, torch, computing (torch's functions that compute), generated
    (code that no file holds), python, waiting, elsewhere."""

    def __init__(self, own: str) -> None:
        """`own`: path of the candidate's shared object."""
        self._own = os.path.realpath(own)
        self._counts: Counter[str] = Counter()
        self._owners: _Owners | None = None
        self.code_is_fixed = False
        """Nothing that the process can run is mapped any more, so its map needs to be read once."""

    @property
    def num_computing(self) -> int:
        """Samples in which something was computed: neither Python's own nor of threads that wait."""
        return sum(self._counts[owner] for owner in ("own", "runtimes", "torch", "computing", "generated"))

    @property
    def of_torch(self) -> float:
        """Torch's part of what was computed."""
        return (self._counts["torch"] + self._num_foreign) / max(1, self.num_computing)

    @property
    def of_foreign(self) -> float:
        """The part of what was computed that no allocation, view or copy explains."""
        return self._num_foreign / max(1, self.num_computing)

    @property
    def _num_foreign(self) -> int:
        return self._counts["computing"] + self._counts["generated"]

    def is_foreign_work(self) -> bool:
        """Whether a part of the work is plainly another's, however much is the candidate's own."""
        return self._num_foreign >= _FEW_FOREIGN and self.of_foreign > _FOREIGN_SHARE

    def is_torchs_work(self, floor: float, call_ms: float) -> bool:
        """Whether less than `floor` of what was computed in calls of `call_ms` is the candidate's own or the C
        runtime's."""
        return self.num_computing >= _FEW and self._looks_like_torchs(floor, call_ms)

    def is_undecided(self, floor: float, call_ms: float) -> bool:
        """Whether there are too few samples to say whose work it is. A machine that others keep busy wakes the
        supervisor late, when a batch is over; what it has seen until then may be anybody's."""
        if self.is_suspect(floor, call_ms):
            return True
        few = self.num_computing < WANTED and self._num_running < _BUSY_ELSEWHERE
        return few and call_ms > _OVERHEAD_MS

    def is_suspect(self, floor: float, call_ms: float) -> bool:
        """Whether it looks like foreign work, or all like torch's, in too few samples to say so."""
        some_foreign = 0 < self._num_foreign < _FEW_FOREIGN and self.of_foreign > _FOREIGN_SHARE
        return some_foreign or self.num_computing < _FEW and self._looks_like_torchs(floor, call_ms)

    @property
    def _num_running(self) -> int:
        return sum(count for owner, count in self._counts.items() if owner != "waiting")

    def _looks_like_torchs(self, floor: float, call_ms: float) -> bool:
        return 1 - self.of_torch < floor and self.of_torch * call_ms > _OVERHEAD_MS

    def to_json(self) -> dict[str, Any]:
        total = max(1, sum(self._counts.values()))
        return {"samples": total, **{owner: count / total for owner, count in sorted(self._counts.items())}}

    def watch(self, worker: Worker, until_s: float, goal: int) -> None:
        """Looks at a worker that has been told to go and resumed, until its answer is there, time is up, or
        `num_computing` has reached the goal."""
        if self._owners is None or not self.code_is_fixed:
            self._owners = _Owners(worker.pid, self._own)
        owners = self._owners
        deadline = time.monotonic() + until_s
        for _ in range(_LOOKS):
            if self.num_computing >= goal or worker.channel.has_message() or time.monotonic() > deadline:
                return
            time.sleep(random.uniform(*_PAUSE_S))
            worker.stop()
            if not worker.channel.has_message():
                self._counts.update(owners.of(address) for address in running_at(worker.pid))
            worker.resume()


def running_at(pid: int) -> list[int]:
    """Program counters of the threads of a stopped process that were computing; one that waits in a call is not."""
    found = []
    for thread in os.listdir(f"/proc/{pid}/task"):
        try:
            with open(f"/proc/{pid}/task/{thread}/syscall") as file:
                fields = file.read().split()
        except (FileNotFoundError, ProcessLookupError):
            continue  # it has ended
        if fields[0] == "-1":
            found.append(int(fields[2], 16))
    return found


class _Owners:
    """Which mapping an address lies in; read again when one is not known."""

    def __init__(self, pid: int, own: str) -> None:
        self._pid, self._own = pid, own
        self._ranges: list[tuple[int, int, str, str, int]] = []

    def of(self, address: int) -> str:
        for _ in range(2):
            index = bisect.bisect_right(self._ranges, address, key=lambda each: each[0]) - 1
            if index >= 0 and address < self._ranges[index][1]:
                start, _, owner, path, offset = self._ranges[index]
                return self._part_of_torch(path, address - start + offset) if owner == "torch" else owner
            self._read()
        return "elsewhere"

    def _read(self) -> None:
        self._ranges = []
        with open(f"/proc/{self._pid}/maps") as maps:
            for line in maps:
                fields = line.split(maxsplit=5)
                if "x" in fields[1]:
                    start, _, end = fields[0].partition("-")
                    path = fields[5].strip() if len(fields) > 5 else ""
                    self._ranges.append((int(start, 16), int(end, 16), self._owner(path), path, int(fields[2], 16)))

    def _part_of_torch(self, path: str, offset: int) -> str:
        if libraries.ONLY_COMPUTES.search(path):
            return "computing"
        try:
            return "computing" if libraries.COMPUTES.search(code_names(path).at(offset)) else "torch"
        except (OSError, ValueError):
            return "torch"

    def _owner(self, path: str) -> str:
        if path == self._own:
            return "own"
        if libraries.has_no_file(path):
            return "generated"
        if libraries.WAITING.search(path):
            return "waiting"
        if libraries.TORCH.search(path):
            return "torch"
        if libraries.RUNTIMES.search(path):
            return "runtimes"
        return "python" if "python" in path or "/torch/" in path else "elsewhere"
