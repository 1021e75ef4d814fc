"""Asynchronous rollouts against their bound, and what a turn costs in CPU time and memory. Ends with one JSON line.

.venv/bin/python scripts/bench_rollouts.py [--part staleness|turns|all] [--small]

staleness  64 slots, batches of 64, long-tailed dialogues with real Ray actors, at max_staleness 0, 1 and 4, against a
           discrete-event simulation of the same load in which nothing but replies and the learner costs time
turns      1,000 dialogues at once whose policy thinks 10 s a turn: CPU time of all processes a turn, memory a dialogue
--small    the same at a sixteenth of the size, to try the script out
"""

from __future__ import annotations

import argparse
import asyncio
import json
import math
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import psutil

from jaxagent.collection.ray_connection import ray_for_this_process
from jaxagent.flow.measure import Flow, FlowActors
from jaxagent.flow.process_tree import cpu_seconds, proportional_bytes, resident_bytes
from jaxagent.flow.simulate import FlowPlan, FlowResult, simulate
from jaxagent.models.scratch_tokenizer import save_tokenizer, train_tokenizer
from jaxagent.synthesis.expert import expert_texts
from jaxagent.synthesis.sources import resolve_tasks
from rollout.scripted_load import TurnLoad
from rollout.store import TrajectoryStore
from rollout.types import Trajectory

STALENESS = [1, 4]
"""Compared with 0, which is always run as well."""
TARGET_OF_BOUND = 0.9
TARGET_CPU_MS = 5.0
TARGET_GROWTH = 0.02
"""Of the lasting processes' memory, from the third quarter of a run to the fourth."""
THINK_S, THINK_SIGMA = 10.0, 0.3
LASTING = ("ray::_", "raylet", "gcs_server")
"""Processes beside this one that live as long as the run: what may not grow."""


def say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


async def play(plan: FlowPlan, actors: FlowActors, scratch: Path, **options: Any) -> FlowResult:
    flow = Flow(plan, actors)
    await flow.warm_up()
    try:
        with tempfile.TemporaryDirectory(dir=scratch) as folder, TrajectoryStore(folder) as store:
            result = await flow.run(store, **options)
            audit = store.audit("load")
            if audit.twice or audit.waiting or audit.dropped:
                raise RuntimeError(f"the flow lost or repeated trajectories: {audit}")
            return result
    finally:
        await flow.close()


async def staleness_part(args: argparse.Namespace, actors: FlowActors, scratch: Path) -> tuple[dict, dict]:
    load = TurnLoad(seed=args.seed)
    size = 64 // (16 if args.small else 1)
    measured, bound, figures = {}, {}, {}
    for max_staleness in (0, *args.staleness):
        plan = FlowPlan(
            load=load, slots=size, batch_size=size, updates=args.updates, max_staleness=max_staleness,
            learner_s=load.mean_trajectory_s / 2,
        )  # fmt: skip
        ideal = simulate(plan)
        result = await play(plan, actors, scratch)
        measured[max_staleness], bound[max_staleness] = result.trajectories_per_hour, ideal.trajectories_per_hour
        figures[f"staleness_{max_staleness}"] = {
            "trajectories_per_hour": round(result.trajectories_per_hour),
            "bound_per_hour": round(ideal.trajectories_per_hour),
            "of_bound": round(result.trajectories_per_hour / ideal.trajectories_per_hour, 3),
            "seconds": round(result.seconds, 1),
            "slots_busy": round(result.busy, 3),
            "largest_staleness": max(result.staleness),
        }
        say(f"max_staleness {max_staleness}: {figures[f'staleness_{max_staleness}']}")
    targets = {}
    for s in args.staleness:
        speedup, limit = measured[s] / measured[0], bound[s] / bound[0]
        figures[f"staleness_{s}"] |= {"over_synchronous": round(speedup, 3), "bound_over_synchronous": round(limit, 3)}
        targets[f"staleness_{s}_of_bound"] = (speedup / limit, TARGET_OF_BOUND, speedup >= TARGET_OF_BOUND * limit)
        targets[f"staleness_{s}_within_bound"] = (
            figures[f"staleness_{s}"]["largest_staleness"], s, figures[f"staleness_{s}"]["largest_staleness"] <= s,
        )  # fmt: skip
    return figures, targets


async def turns_part(args: argparse.Namespace, actors: FlowActors, scratch: Path) -> tuple[dict, dict]:
    slots = 1000 // (16 if args.small else 1)
    load = TurnLoad(
        max_turns=args.turns, fixed_turns=True, sigma=THINK_SIGMA,
        median_turn_s=args.think / math.exp(THINK_SIGMA**2 / 2), seed=args.seed,
    )  # fmt: skip
    plan = FlowPlan(
        load=load, slots=slots, batch_size=slots, updates=args.rounds, max_staleness=args.rounds, learner_s=0.0
    )
    flow = Flow(plan, actors)
    await flow.warm_up()
    usage = Usage(every_s=max(args.turns * args.think * args.rounds / 20, 2.0))
    with tempfile.TemporaryDirectory(dir=scratch) as folder, TrajectoryStore(folder) as store:
        async with usage:
            await flow.run(store, on_accept=usage.count)
        stored_mb = sum(file.stat().st_size for file in Path(folder).iterdir()) / 1e6
    await flow.close()
    cpu_ms, growth = 1000 * usage.cpu_s / usage.turns, usage.growth()
    figures = {
        "dialogues": slots,
        "turns": usage.turns,
        "think_s": args.think,
        "seconds": round(usage.seconds, 1),
        "cpu_ms_per_turn": round(cpu_ms, 3),
        "memory_mb_per_dialogue": round(usage.largest_bytes / slots / 1e6, 3),
        "growth_fourth_quarter": None if growth is None else round(growth, 4),
        "store_mb": round(stored_mb, 1),
        "sandbox": actors.backend,
    }
    say(f"turns: {figures}")
    targets: dict[str, Any] = {"cpu_ms_per_turn": (cpu_ms, TARGET_CPU_MS, cpu_ms <= TARGET_CPU_MS)}
    if growth is not None:
        targets["growth_fourth_quarter"] = (growth, TARGET_GROWTH, growth <= TARGET_GROWTH)
    return {"turns": figures}, targets


class Usage:
    """CPU time and memory of this program's process tree while it is entered."""

    def __init__(self, *, every_s: float) -> None:
        self._every_s = every_s
        self._lasting: list[int] = []
        self.turns, self.largest_bytes, self.cpu_s, self.seconds = 0, 0, 0.0, 0.0

    async def __aenter__(self) -> Usage:
        self._empty = sum(proportional_bytes().values())
        self._cpu_before, self._began = cpu_seconds(), time.monotonic()
        self._watcher = asyncio.create_task(self._watch())
        return self

    async def __aexit__(self, *_: object) -> None:
        self._watcher.cancel()
        self.cpu_s, self.seconds = cpu_seconds() - self._cpu_before, time.monotonic() - self._began

    def count(self, trajectory: Trajectory) -> None:
        self.turns += len(trajectory.turns)

    def growth(self) -> float | None:
        """Relative growth of the lasting processes from a run's third quarter to its fourth; None for few samples."""
        quarter = len(self._lasting) // 4
        if quarter < 2:
            return None
        return sum(self._lasting[-quarter:]) / sum(self._lasting[-2 * quarter : -quarter]) - 1.0

    async def _watch(self) -> None:
        while True:
            await asyncio.sleep(self._every_s)
            total = await asyncio.to_thread(lambda: sum(proportional_bytes().values()))
            self.largest_bytes = max(self.largest_bytes, total - self._empty)
            resident = await asyncio.to_thread(resident_bytes)
            lasting = sum(size for name, size in resident.items() if name.startswith(LASTING))
            self._lasting.append(lasting + psutil.Process().memory_info().rss)
            seconds = time.monotonic() - self._began
            say(
                f"  {seconds:.0f} s: {total / 1e6:.0f} MB in all, {self._lasting[-1] / 1e6:.0f} MB in lasting processes"
            )


async def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--part", choices=["staleness", "turns", "all"], default="all")
    parser.add_argument("--small", action="store_true")
    parser.add_argument("--updates", type=int, default=20, help="of each staleness run")
    parser.add_argument("--staleness", type=int, nargs="*", default=STALENESS, help="bounds to compare with 0")
    parser.add_argument("--turns", type=int, default=100, help="of each dialogue in part `turns`")
    parser.add_argument("--rounds", type=int, default=1, help="times that all dialogues of part `turns` are held")
    parser.add_argument("--think", type=float, default=THINK_S, help="mean seconds that the policy takes a turn")
    parser.add_argument("--actors", type=int, default=2)
    parser.add_argument("--backend", choices=["files", "process", "docker"], default="files")
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()
    figures: dict[str, Any] = {}
    targets: dict[str, tuple[float, float, bool]] = {}
    with tempfile.TemporaryDirectory(prefix="bench-rollouts-") as name, ray_for_this_process():
        scratch = Path(name)
        texts = expert_texts(resolve_tasks("synthetic:train"))
        save_tokenizer(train_tokenizer(texts, vocab_size=1024), scratch / "tokenizer")
        actors = FlowActors(tokenizer_dir=scratch / "tokenizer", num_actors=args.actors, backend=args.backend)
        for part, run in (("staleness", staleness_part), ("turns", turns_part)):
            if args.part in (part, "all"):
                found, wanted = await run(args, actors, scratch)
                figures |= found
                targets |= wanted
    ok = all(met for _, _, met in targets.values())
    shown = {
        name: {"value": round(value, 4), "target": target, "ok": met} for name, (value, target, met) in targets.items()
    }
    print(json.dumps({"name": "bench-rollouts", "figures": figures, "targets": shown, "ok": ok}))
    return 0 if ok else 1


if __name__ == "__main__":
    sys.exit(asyncio.run(main()))
