"""Latencies of an agent's shell: opening, first and later commands, closing. Ends with one JSON line.

.venv/bin/python scripts/bench_sandbox.py [--repeats 12] [--backend docker|process]
"""

from __future__ import annotations

import argparse
import asyncio
import json
import logging
import shutil
import statistics
import tempfile
import time
from collections import defaultdict
from pathlib import Path

from sandbox.backends import close_pools, open_sandbox, warm_up
from sandbox.config import SandboxConfig

COMMANDS = 20
TARGET_EXEC_MS = 20.0
TARGET_WARM_OPEN_MS = 100.0


async def cycle(config: SandboxConfig, samples: dict[str, list[float]], prefix: str) -> None:
    """Opens, uses and closes one sandbox; appends seconds to `samples`."""
    workdir = Path(tempfile.mkdtemp(prefix="bench-sandbox-"))
    (workdir / "kernels").mkdir()

    async def timed(name: str, action):
        begun = time.perf_counter()
        result = await action
        samples[f"{prefix}_{name}"].append(time.perf_counter() - begun)
        return result

    box = await timed("open", open_sandbox(config, workdir))
    await timed("first_exec", box.exec("true", timeout_s=60))
    for _ in range(COMMANDS):
        await timed("exec", box.exec("true", timeout_s=60))
    await timed("close", box.close())
    shutil.rmtree(workdir)


async def measure(backend: str, repeats: int) -> dict[str, list[float]]:
    samples: dict[str, list[float]] = defaultdict(list)
    for _ in range(repeats):
        await cycle(SandboxConfig(backend=backend, warm_containers=0), samples, f"{backend}_cold")  # type: ignore[arg-type]
    if backend == "docker":
        warm = SandboxConfig(backend="docker", warm_containers=1)
        for _ in range(repeats):
            await warm_up(warm)  # a container is ready: the pool refills in the background otherwise
            await cycle(warm, samples, "docker_warm")
        close_pools()
    return samples


def summary(seconds: list[float]) -> dict[str, float]:
    """Milliseconds: median, and the spread as 10th and 90th percentile."""
    ordered = sorted(seconds)
    at = {name: ordered[round(share * (len(ordered) - 1))] for name, share in (("p10", 0.1), ("p90", 0.9))}
    return {"median_ms": round(statistics.median(ordered) * 1e3, 2)} | {
        f"{name}_ms": round(value * 1e3, 2) for name, value in at.items()
    }


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repeats", type=int, default=12)
    parser.add_argument("--backend", choices=["docker", "process"], action="append")
    arguments = parser.parse_args()
    logging.basicConfig(level=logging.WARNING)
    figures: dict[str, dict[str, float]] = {}
    for backend in arguments.backend or ["docker", "process"]:
        for name, seconds in asyncio.run(measure(backend, arguments.repeats)).items():
            figures[name] = summary(seconds)
            print(f"{name:24} {figures[name]}")
    targets = {name: TARGET_EXEC_MS for name in figures if name.endswith("_exec") and "first" not in name}
    targets |= {name: TARGET_WARM_OPEN_MS for name in figures if name == "docker_warm_open"}
    ok = all(figures[name]["median_ms"] <= limit for name, limit in targets.items())
    print(json.dumps({"name": "sandbox", "figures": figures, "targets": targets, "ok": ok}))
    return 0 if ok else 1


if __name__ == "__main__":
    raise SystemExit(main())
