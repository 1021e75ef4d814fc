"""Judgements beside two processes that use the same GPU all the time: one like a learner, one like an engine."""

from __future__ import annotations

import argparse
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import noise

from sandbox.quiet import QuietLease

_LEARNER = """
import torch, time
a = torch.randn(4096, 4096, device="cuda", dtype=torch.bfloat16)
b = torch.randn(4096, 4096, device="cuda", dtype=torch.bfloat16)
def step():
    for _ in range(64):  # 64 products are on their way before the host waits
        torch.mm(a, b)
    torch.cuda.synchronize()
"""
_ENGINE = """
import torch, time
x = torch.randn(256, 1024, device="cuda")
w = torch.randn(1024, 1024, device="cuda")
graph = torch.cuda.CUDAGraph()
for _ in range(3):
    torch.tanh(x @ w)
torch.cuda.synchronize()
with torch.cuda.graph(graph):
    y = x
    for _ in range(100):
        y = torch.tanh(y @ w)
def step():
    graph.replay()
    torch.cuda.synchronize()
"""
_LOOP = """
print("ready", flush=True)
began, steps, longest = time.monotonic(), 0, 0.0
while True:
    last = time.monotonic()
    step()
    steps += 1
    now = time.monotonic()
    longest = max(longest, now - last)
    if now - began > 1.0:
        print(steps / (now - began), longest, flush=True)
        began, steps, longest = now, 0, 0.0
"""


def run(arguments: argparse.Namespace, folder: Path) -> dict[str, Any]:
    figures: dict[str, Any] = {}
    repeats = max(5, arguments.repeats // 2)
    artifacts = noise.compiled(arguments, folder)
    with noise.opened(arguments, folder, quiet=False) as judge:
        for case, _ in artifacts:
            judge.baseline(case.task)  # before others come
    with _hammers(folder) as hammers:
        for quiet in (True, False):
            with noise.opened(arguments, folder, quiet=quiet) as judge:
                for case, artifact in artifacts:
                    figure = noise.measure(judge, case, artifact, repeats, jobs=arguments.jobs)
                    figures.setdefault(case.name, {})["with lease" if quiet else "without"] = figure
                    print(f"{case.name}, quiet={quiet}: {figure}", flush=True)
    steady = all(figure["with lease"]["variation"] <= noise.TARGET for figure in figures.values())
    return {"cases": figures, "hammers": hammers, "ok": steady}


@contextmanager
def _hammers(folder: Path) -> Iterator[dict[str, str]]:
    """Two processes at work, registered for the quiet lease; afterwards, what they said of their own pace."""
    lease = QuietLease(folder / "quiet")
    said: dict[str, str] = {}
    processes = {}
    for name, code in (("learner", _LEARNER), ("engine", _ENGINE)):
        output = folder / f"{name}.txt"
        processes[name] = subprocess.Popen([sys.executable, "-c", code + _LOOP], stdout=output.open("w"))
        while "ready" not in output.read_text():
            if processes[name].poll() is not None:
                raise RuntimeError(f"the {name} ended before it was ready")
            time.sleep(0.1)
        lease.register(processes[name].pid)
    try:
        yield said
    finally:
        for name, process in processes.items():
            lease.unregister(process.pid)
            process.kill()
            process.wait()
            said[name] = (folder / f"{name}.txt").read_text()
