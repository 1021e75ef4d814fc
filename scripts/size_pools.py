"""How many engines, profiler GPUs, learner GPUs and compile cores for a cluster? One row for each size, by simulation.

.venv/bin/python scripts/size_pools.py [--gpus 8,16,32,64,128,256,512,1024] [--set turns=150 --set verify_s=2.5 …]
"""

from __future__ import annotations

import argparse
import sys
import time

from jaxagent.flow.pools import ServiceTimes, demand, simulate_pools, split

SIZES = "8,16,32,64,128,256,512,1024"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--gpus", default=SIZES)
    parser.add_argument("--batch", type=int, default=1024)
    parser.add_argument("--staleness", type=int, default=1)
    parser.add_argument("--steps", type=int, default=2)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--set", action="append", default=[], metavar="KEY=VALUE", help="a service time of your own")
    args = parser.parse_args()
    times = ServiceTimes.model_validate(dict(pair.split("=", 1) for pair in args.set))
    needs = demand(times, args.batch)
    print("one step asks for " + ", ".join(f"{seconds / 3600:.1f} h of {name}" for name, seconds in needs.items()))
    print(
        "| GPUs | engines | profilers | learners | compile cores | step | busy: engines, profilers, cores, learners |"
    )
    print("| --- | --- | --- | --- | --- | --- | --- |")
    for gpus in map(int, args.gpus.split(",")):
        began = time.monotonic()
        pools = split(times, gpus, batch_size=args.batch, max_staleness=args.staleness)
        report = simulate_pools(times, pools, steps=args.steps, seed=args.seed)
        busy = (report.engine_busy, report.profiler_busy, report.compile_busy, report.learner_busy)
        print(
            f"| {gpus} | {pools.engines} | {pools.profilers} | {pools.learners} | {pools.compile_cores} | "
            f"{report.step_s / 60:.1f} min | " + ", ".join(f"{share:.0%}" for share in busy) + " |"
        )
        print(f"{gpus} GPUs simulated in {time.monotonic() - began:.0f} s", file=sys.stderr, flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
