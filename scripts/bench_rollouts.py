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

from jaxagent.flow.measure import Flow, FlowActors
from jaxagent.flow.process_tree import cpu_seconds, proportional_bytes, resident_bytes
from jaxagent.flow.simulate import FlowPlan, FlowResult, simulate
from jaxagent.models.scratch_tokenizer import save_tokenizer, train_tokenizer
from jaxagent.rollout_cluster import ray_for_this_process
from jaxagent.synthesis.expert import expert_texts
from jaxagent.synthesis.sources import resolve_tasks
from rollout.scripted_load import TurnLoad
from rollout.store import TrajectoryStore
from rollout.types import Trajectory

STALENESS = (0, 1, 4)
TARGET_OF_BOUND = 0.9
TARGET_CPU_MS = 5.0
TARGET_GROWTH = 0.02
"""Of the long-lived processes' memory between the middle and the end of a run."""
THINK_S, THINK_SIGMA = 10.0, 0.3
LONG_LIVED = ("ray::_RolloutProcess", "ray::_EngineProcess", "raylet", "gcs_server", "python")


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
    for max_staleness in STALENESS:
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
    for s in STALENESS[1:]:
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
    rounds = args.rounds
    plan = FlowPlan(load=load, slots=slots, batch_size=slots, updates=rounds, max_staleness=rounds, learner_s=0.0)
    samples: list[dict[str, float]] = []
    flow = Flow(plan, actors)
    await flow.warm_up()
    empty, cpu_before, began = sum(proportional_bytes().values()), cpu_seconds(), time.monotonic()
    done = 0

    def count(trajectory: Trajectory) -> None:
        nonlocal done
        done += len(trajectory.turns)

    watcher = asyncio.create_task(watch(samples, began, lambda: done, seconds=args.turns * args.think * rounds))
    with tempfile.TemporaryDirectory(dir=scratch) as folder, TrajectoryStore(folder) as store:
        await flow.run(store, on_accept=count)
        stored_mb = sum(file.stat().st_size for file in Path(folder).iterdir()) / 1e6
    watcher.cancel()
    cpu_s, seconds = cpu_seconds() - cpu_before, time.monotonic() - began
    await flow.close()
    full = max(samples, key=lambda sample: sample["pss"])
    growth = growth_of(samples)
    figures = {
        "dialogues": slots,
        "turns": done,
        "think_s": args.think,
        "seconds": round(seconds, 1),
        "cpu_ms_per_turn": round(1000 * cpu_s / done, 3),
        "memory_mb_per_dialogue": round((full["pss"] - empty) / slots / 1e6, 3),
        "memory_mb_before": round(empty / 1e6, 1),
        "growth_second_half": None if growth is None else round(growth, 4),
        "store_mb": round(stored_mb, 1),
        "sandbox": actors.backend,
    }
    say(f"turns: {figures}")
    targets: dict[str, Any] = {
        "cpu_ms_per_turn": (1000 * cpu_s / done, TARGET_CPU_MS, 1000 * cpu_s / done <= TARGET_CPU_MS)
    }
    if growth is not None:
        targets["growth_second_half"] = (growth, TARGET_GROWTH, growth <= TARGET_GROWTH)
    return {"turns": figures}, targets


async def watch(samples: list[dict[str, float]], began: float, done: Any, *, seconds: float) -> None:
    """Samples memory some twenty times over a run of about `seconds`."""
    while True:
        await asyncio.sleep(max(seconds / 20, 2.0))
        resident = await asyncio.to_thread(resident_bytes)
        pss = await asyncio.to_thread(proportional_bytes)
        lasting = sum(size for name, size in resident.items() if name.startswith(LONG_LIVED))
        samples.append({"seconds": time.monotonic() - began, "pss": sum(pss.values()), "lasting": lasting})
        say(f"  {samples[-1]['seconds']:.0f} s: {done()} turns, {samples[-1]['pss'] / 1e6:.0f} MB")


def growth_of(samples: list[dict[str, float]]) -> float | None:
    """Relative growth of the long-lived processes from the third quarter of a run to the fourth; None for few."""
    if len(samples) < 8:
        return None
    quarter = len(samples) // 4
    third, fourth = samples[-2 * quarter : -quarter], samples[-quarter:]
    return sum(s["lasting"] for s in fourth) / sum(s["lasting"] for s in third) * len(third) / len(fourth) - 1.0


async def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--part", choices=["staleness", "turns", "all"], default="all")
    parser.add_argument("--small", action="store_true")
    parser.add_argument("--updates", type=int, default=20, help="of each staleness run")
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
