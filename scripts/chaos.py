"""Breaks a run at seeded moments and proves from its files that nothing was lost or repeated. Ends with one JSON line.

.venv/bin/python scripts/chaos.py [--faults 30] [--seed 0] [--only KIND,KIND] [--config configs/chaos.yaml]

A harness that is stopped, or whose time is over, goes on with the same run when the command is given again.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import signal
import sys
import time
from collections import Counter
from pathlib import Path

from jaxagent.chaos.faults import DEFAULT_KINDS, plan
from jaxagent.chaos.harness import ChaosError, Harness
from jaxagent.chaos.proof import prove
from jaxagent.chaos.targets import Kind
from jaxagent.config.load import load_config


def say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


async def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--config", type=Path, default=Path("configs/chaos.yaml"))
    parser.add_argument("--faults", type=int, default=30)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--only", default=",".join(DEFAULT_KINDS), help=f"kinds, of: {', '.join(Kind)}")
    parser.add_argument("--mean-gap-s", type=float, default=6.0, help="mean seconds between two faults")
    parser.add_argument("--limit-s", type=float, default=3600.0)
    parser.add_argument("--max-resumes", type=int, default=40)
    parser.add_argument("--runs-dir", type=Path, default=Path("runs"))
    args, overrides = parser.parse_known_args()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, asyncio.current_task().cancel)  # type: ignore[union-attr]

    kinds = [Kind(name) for name in args.only.split(",")]
    root = (args.runs_dir / f"chaos-{args.seed}").resolve()
    root.parent.mkdir(parents=True, exist_ok=True)
    overrides = ["--name", root.name, "--runs_dir", str(root.parent), *overrides]
    load_config(args.config, overrides)  # a slip is told now, not from a log
    began = time.monotonic()
    harness = Harness([str(args.config), *overrides], root, say=say)
    try:
        inflicted = await harness.run(
            plan(args.seed, kinds=kinds, mean_gap_s=args.mean_gap_s),
            number=args.faults, limit_s=args.limit_s, max_resumes=args.max_resumes,
        )  # fmt: skip
    except ChaosError as error:
        say(str(error))
        return 1
    except asyncio.CancelledError:
        say("stopped; the same command goes on with the run")
        return 1
    proof = prove(root)
    for problem in proof.problems:
        say(f"PROBLEM {problem}")
    hit = Counter(f"{fault['act']} {fault['kind']}" for fault in inflicted.faults)
    ok = not proof.problems and len(inflicted.faults) >= args.faults
    figures = {
        "faults": len(inflicted.faults), "by_kind": dict(sorted(hit.items())), "resumes": inflicted.resumes,
        "not_met": inflicted.skipped, "trajectories": proof.trajectories, "records": proof.records,
        "problems": proof.problems, "seconds": round(time.monotonic() - began, 1), **proof.counts,
    }  # fmt: skip
    targets = {"faults": args.faults, "problems": 0}
    print(json.dumps({"name": "chaos", "figures": figures, "targets": targets, "ok": ok}))
    return 0 if ok else 1


if __name__ == "__main__":
    sys.exit(asyncio.run(main()))
