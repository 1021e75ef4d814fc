"""A 0.5B model's updates on one GPU: speed against transformers, rows of 131,072 tokens, and the plan's memory.

    python scripts/bench_learner/gpu.py [--rows 16] [--rows-at-a-time 2 4 8] [--best 4] [--rounds 5]

The shape of Qwen2.5-Coder-0.5B with random weights; all parameters are trained, in bfloat16 over float32 weights.
    long     one update of the actor and of the critic on a row of 131,072 tokens: seconds and peak memory
    rounds   an actor update over packed rows of 8,192 tokens, ours and transformers' two (gpu_torch.py) in turn; the
             first round is not counted. MFU counts 3 forward passes, attention causal within each trajectory.
    rows     the same of ours with other numbers of rows at a time, alone
Each peak stands beside what `jaxagent plan` says of the same config. Prints a line a figure, and one JSON line at last.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from gpu_case import draw
from run import Side

PEAK_FLOPS = 989e12
"""Dense bfloat16 of an H100 or H200, by its data sheet."""
LONG = 131_072
TARGETS = {"mfu": 0.33, "ratio": 1.3, "plan_within": 0.15}
FAST = {"row_tokens": 8192, "logits_chunk_tokens": 32_768, "remat": "keep_products", "unroll_layers": True}
WHOLE_MEMORY = 0.92
"""Of the device's."""
LEAN = {"row_tokens": LONG, "logits_chunk_tokens": 8192, "remat": "keep_attention"}


def main() -> None:
    options = parse_options()
    case = {"rows": options.rows, "row_tokens": 8192, "least": 512, "greatest": 4096}
    with ThreadPoolExecutor(2) as pool:
        plans = {config_name(*key): pool.submit(planned, *key) for key in configs(options)}
        figures = measured_on_gpu(case, options)
        figures["plan"] = against_plan({name: plan.result() for name, plan in plans.items()}, figures)
    print(json.dumps({"name": "learner_gpu", "figures": figures, "targets": TARGETS, "ok": meets(figures)}))
    sys.exit(0 if meets(figures) else 1)


def measured_on_gpu(case: dict[str, Any], options: argparse.Namespace) -> dict[str, Any]:
    """Each number of rows at a time has a process of its own, and the peak is the process's."""
    theirs = {"causal": started("gpu_torch.py", case | {"attends": "causal"})}
    if "isolated" in options.parts:
        theirs["isolated"] = started("gpu_torch.py", case | {"attends": "isolated"})
    for side in theirs.values():  # they compile while long rows are measured
        side.send("case", "actor")
    figures: dict[str, Any] = {"long": long_updates(options.memory) if "long" in options.parts else {}}
    for side in theirs.values():
        side.receive()
    ours = started_ours(case, options.best, memory=options.memory)
    figures["sides"] = {"ours": ours.about} | {name: side.about for name, side in theirs.items()}
    figures["rounds"] = in_turn(ours, theirs, str(options.best), options)
    for side in (ours, *theirs.values()):
        side.close()
    figures["rows"] = {str(options.best): figures["rounds"]["ours"]}
    for rows in options.rows_at_a_time:
        if rows != options.best:
            figures["rows"][str(rows)] = alone(started_ours(case, rows, memory=WHOLE_MEMORY), rows, options)
    return figures


def started_ours(case: dict[str, Any], rows: int, *, memory: float) -> Side:
    """`memory`: part of the device's that XLA takes at once. Where it takes more by and by, it ends up with regions of
    which none is as large as a step needs, though they would do together."""
    options = case | {"rows_at_a_time": [rows], "learner": FAST}
    return started("gpu_ours.py", options, XLA_PYTHON_CLIENT_MEM_FRACTION=str(memory))


def alone(ours: Side, rows: int, options: argparse.Namespace) -> dict[str, Any]:
    answers = [ours.ask(str(rows), "actor") for _ in range(options.rounds + 1)]
    ours.close()
    figure = summary(answers[1:], options)
    print(f"{rows} rows at a time: {json.dumps(figure)}", flush=True)
    return figure


def parse_options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, default=16, help="of an update")
    parser.add_argument("--rows-at-a-time", type=int, nargs="+", default=[2, 4, 8])
    parser.add_argument("--best", type=int, default=4, help="rows at a time, in turn with theirs")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--memory", type=float, default=0.5, help="part of the device's that ours has beside theirs")
    parser.add_argument(
        "--parts", nargs="*", choices=("long", "isolated"), default=["long", "isolated"], help="beside the rounds"
    )
    return parser.parse_args()


def started(script: str, options: dict[str, Any], **environment: str) -> Side:
    return Side(sys.executable, script, json.dumps(options), **environment)


def long_updates(memory: float) -> dict[str, Any]:
    """One update that compiles, and one that is timed, of each network."""
    options = one_row() | {"rows_at_a_time": [1], "learner": LEAN}
    side = started("gpu_ours.py", options, XLA_PYTHON_CLIENT_MEM_FRACTION=str(memory))
    found = {}
    for network in ("critic", "actor"):  # the peak is the process's, and the actor's is the higher one
        side.ask("1", network)
        answer = side.ask("1", network)
        found[network] = {"seconds": round(answer["seconds"], 3), "peak_gib": gib(answer["peak_bytes"])}
        print(f"131,072 tokens, {network}: {json.dumps(found[network])}", flush=True)
    side.close()
    found["actor"]["mfu"] = round(model_flops([LONG]) / found["actor"]["seconds"] / PEAK_FLOPS, 3)
    return found


def one_row() -> dict[str, Any]:
    return {"rows": 1, "row_tokens": LONG, "least": LONG, "greatest": LONG}


def in_turn(ours: Side, theirs: dict[str, Side], batch: str, options: argparse.Namespace) -> dict[str, Any]:
    answers: dict[str, list[dict[str, Any]]] = {name: [] for name in ("ours", *theirs)}
    for number in range(options.rounds + 1):
        for name in answers:
            answer = ours.ask(batch, "actor") if name == "ours" else theirs[name].ask("case", "actor")
            if number:
                answers[name].append(answer)
    figures: dict[str, Any] = {name: summary(given, options) for name, given in answers.items()}
    for name in theirs:
        for kind in ("min", "median"):
            ratio = figures[name][f"{kind}_s"] / figures["ours"][f"{kind}_s"]
            figures[f"{kind}_ratio_{name}"] = round(ratio, 3)
    for name, figure in figures.items():
        print(f"{name}: {json.dumps(figure)}", flush=True)
    return figures


def summary(answers: list[dict[str, Any]], options: argparse.Namespace) -> dict[str, Any]:
    seconds = [answer["seconds"] for answer in answers]
    lengths = draw(options.rows, 8192, least=512, greatest=4096).lengths
    median = statistics.median(seconds)
    return {
        "min_s": round(min(seconds), 4),
        "median_s": round(median, 4),
        "max_s": round(max(seconds), 4),
        "tokens_per_s": round(sum(lengths) / median),
        "mfu": round(model_flops(lengths) / median / PEAK_FLOPS, 4),
        "peak_gib": gib(max(answer["peak_bytes"] for answer in answers)),
        "loss": answers[-1]["loss"],
    }


def model_flops(lengths: list[int]) -> float:
    """Of an actor update on trajectories of these lengths."""
    from gpu_ours import SHAPE

    from jaxagent.plan.flops import forward_flops

    return 3 * sum(sum(forward_flops(SHAPE, tokens=n, row_tokens=n, has_head=True)) for n in lengths)


def configs(options: argparse.Namespace) -> list[tuple[int, bool]]:
    """(rows at a time, whether they are the long ones) of each config that is measured."""
    long = [(1, True)] if "long" in options.parts else []
    return [*((rows, False) for rows in options.rows_at_a_time), *long]


def config_name(rows: int, is_long: bool) -> str:
    return f"{rows} x {LONG if is_long else FAST['row_tokens']}"


def planned(rows: int, is_long: bool) -> dict[str, float]:
    """GiB by step, as `jaxagent plan` has them."""
    from gpu_ours import SHAPE, learner_config

    from jaxagent.plan.facts import measured
    from jaxagent.plan.memory import memory_of

    config = learner_config(LEAN if is_long else FAST, rows)
    facts = measured(SHAPE, config, num_microbatches=1)
    return {name: gib(memory_of(name, facts, SHAPE, config).total) for name in ("actor", "critic")}


def against_plan(plans: dict[str, dict[str, float]], figures: dict[str, Any]) -> dict[str, Any]:
    """Planned and measured peaks in GiB, and how far the plan is off."""
    peaks = {f"{config_name(1, True)}, {network}": of["peak_gib"] for network, of in figures["long"].items()}
    peaks |= {f"{config_name(int(rows), False)}, actor": of["peak_gib"] for rows, of in figures["rows"].items()}
    found = {}
    for name, peak in peaks.items():
        config, network = name.split(", ")
        plan = plans[config][network]
        found[name] = {"planned": plan, "measured": peak, "off": round(plan / peak - 1, 3)}
        print(f"plan, {name}: {json.dumps(found[name])}", flush=True)
    return found


def meets(figures: dict[str, Any]) -> bool:
    rounds = figures["rounds"]
    ratio = min(rounds["min_ratio_causal"], rounds["median_ratio_causal"])
    off = max(abs(plan["off"]) for plan in figures["plan"].values())
    return rounds["ours"]["mfu"] >= TARGETS["mfu"] and ratio >= TARGETS["ratio"] and off <= TARGETS["plan_within"]


def gib(size: float) -> float:
    return round(size / 2**30, 2)


if __name__ == "__main__":
    main()
