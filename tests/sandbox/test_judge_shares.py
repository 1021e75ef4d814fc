"""Program counters of stopped processes, and whose they are; whole judgements are in redteam/."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections import Counter

import pytest

from sandbox.judge.shares import Shares, _Owners, running_at

BUSY = {
    "math": ("import math\nx = 0.5\nwhile True: sum(map(math.lgamma, [x] * 1000))", {"runtimes", "python"}),
    "sleep": ("import time\ntime.sleep(60)", set()),
    "python": ("while True: pass", {"python"}),
}


def stopped_samples(process: subprocess.Popen, count: int) -> list[int]:
    found = []
    for _ in range(count):
        time.sleep(0.01)
        os.kill(process.pid, signal.SIGSTOP)
        while open(f"/proc/{process.pid}/stat").read().rpartition(")")[2].split()[0] != "T":  # noqa: SIM115
            time.sleep(0.0005)
        found += running_at(process.pid)
        os.kill(process.pid, signal.SIGCONT)
    return found


@pytest.mark.parametrize("name", BUSY)
def test_a_stopped_process_tells_whose_code_it_runs(name: str) -> None:
    code, owners = BUSY[name]
    process = subprocess.Popen([sys.executable, "-c", code])
    try:
        time.sleep(0.5)
        found = _Owners(process.pid, own="/none")
        counts = Counter(found.of(address) for address in stopped_samples(process, 20))
        assert owners <= set(counts) and set(counts) <= owners | {"elsewhere"}, counts
        assert sum(counts.values()) == (20 if owners else 0)
    finally:
        process.kill()
        process.wait()


def test_refusal_needs_samples_a_floor_and_more_than_overhead() -> None:
    shares = Shares("/own.so")
    shares._counts.update({"torch": 23, "python": 500, "waiting": 500})
    assert not shares.is_torchs_work(0.05, 1.0) and shares.is_undecided(0.05, 1.0)
    shares._counts.update({"torch": 36})
    assert shares.is_torchs_work(0.05, 1.0) and not shares.is_undecided(0.05, 1.0)
    assert not shares.is_torchs_work(0.0, 1.0) and not shares.is_torchs_work(0.05, 0.05)
    shares._counts.update({"own": 4})
    assert not shares.is_torchs_work(0.05, 1.0) and shares.is_torchs_work(0.1, 1.0)
    assert shares.to_json()["own"] == pytest.approx(4 / 1063)


def test_libraries_are_known_by_their_paths() -> None:
    owners = _Owners(os.getpid(), own="/tmp/candidate-x/extension.so")
    for path, owner in {
        "/tmp/candidate-x/extension.so": "own",
        "/tmp/candidate-y/extension.so": "elsewhere",
        "/x/site-packages/torch/lib/libtorch_cpu.so": "torch",
        "/x/site-packages/torch/lib/libtorch_python.so": "python",
        "/x/site-packages/torch/lib/libc10.so": "python",
        "/x/site-packages/torch/lib/libgomp.so.1": "waiting",
        "/x/site-packages/torch/lib/libgomp-24e2ab19.so.1.0.0": "waiting",
        "/usr/lib/x86_64-linux-gnu/libm.so.6": "runtimes",
        "/usr/lib/x86_64-linux-gnu/libc-2.31.so": "runtimes",
        "/usr/lib/x86_64-linux-gnu/libmkl_rt.so": "torch",
        "/usr/bin/python3.11": "python",
        "[vdso]": "runtimes",
        "": "elsewhere",
    }.items():
        assert owners._owner(path) == owner, path
