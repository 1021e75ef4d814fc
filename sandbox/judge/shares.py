"""Whose code runs while a candidate is called: its own, the C runtime's, torch's, or Python's.

Symbols and operators say what a candidate may call by name. What it does call is seen from outside: its process is
stopped at random moments of a batch, and for every thread that was running the kernel tells where its program counter
stood. The process notices nothing but the time that has passed.

Torch's libraries also allocate and copy, which a candidate may ask for. So their functions are told apart by name: what
computes (BLAS, convolutions, elementwise kernels) is nobody's business, and neither is code that no file holds, as
oneDNN and MKL generate it.
"""

from __future__ import annotations

import os
import random
import re
import time
from collections import Counter
from typing import Any

from sandbox.judge.code_names import code_names
from sandbox.judge.worker import Worker

_PAUSE_S = (0.00005, 0.0003)
"""Between two looks."""
_LOOKS = 40
"""In one batch, at most."""
_FEW, WANTED = 24, 54
"""Samples in which something was computed: with fewer nothing is refused, more are not looked for."""
_RUNTIMES = re.compile(r"(libc|libm|libmvec|libgcc_s|libstdc\+\+|libpthread|ld-linux[^/]*)[.-][^/]*$|\[vdso\]")
_WAITING = re.compile(r"/libgomp[^/]*$")
"""Threads without work turn in circles there; what they compute lies elsewhere."""
_NO_FILES = ("[heap]", "[stack]", "[anon", "/memfd:", "/dev/zero")
_TORCH = re.compile(r"/libtorch_cpu|libmkl|libdnnl|libopenblas|/numpy")
"""What can compute; libtorch_python and libc10 are overhead, as Python is."""
_ONLY_COMPUTES = re.compile(r"/lib(mkl|dnnl|openblas)")
_COMPUTES = re.compile(
    r"^_?mkl_(?!serv)|^(cblas|nnp|xnn|dnnl)_|^[sdcz]gem[mv]|4dnnl|7qnnpack|11arm_compute|Sleef_"
    r"|6fbgemm(?!\w*(Float|transpose))|2at6native(6AVX512|4AVX2|7DEFAULT|\d+SVE|7cpublas)(?!.*(copy|fill|zero))",
    re.IGNORECASE,
)
"""Names, as the linker knows them, of functions that no allocation, view or copy comes to."""
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
        """Whether it looks like torch's work so far, in too few samples to say so: on a busy machine most find threads
        that wait."""
        return self.num_computing < _FEW and self._looks_like_torchs(floor, call_ms)

    def _looks_like_torchs(self, floor: float, call_ms: float) -> bool:
        return 1 - self.of_torch < floor and self.of_torch * call_ms > _OVERHEAD_MS

    def to_json(self) -> dict[str, Any]:
        total = max(1, sum(self._counts.values()))
        return {"samples": total, **{owner: count / total for owner, count in sorted(self._counts.items())}}

    def watch(self, worker: Worker, until_s: float, goal: int) -> None:
        """Looks at a worker that has been told to go and resumed, until its answer is there, time is up, or
        `num_computing` has reached the goal."""
        owners = _Owners(worker.pid, self._own)
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
            for start, end, owner, path, offset in self._ranges:
                if start <= address < end:
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
        if _ONLY_COMPUTES.search(path):
            return "computing"
        try:
            return "computing" if _COMPUTES.search(code_names(path).at(offset)) else "torch"
        except (OSError, ValueError):
            return "torch"

    def _owner(self, path: str) -> str:
        if path == self._own:
            return "own"
        if not path or path.startswith(_NO_FILES) or path.endswith(" (deleted)"):
            return "generated"
        if _WAITING.search(path):
            return "waiting"
        if _TORCH.search(path):
            return "torch"
        if _RUNTIMES.search(path):
            return "runtimes"
        return "python" if "python" in path or "/torch/" in path else "elsewhere"
