"""What the judge says of the scripted expert's kernels: every frame and every fault, on a few train tasks of a skill.

.venv/bin/python scripts/expert_frames.py --skill cuda [--tasks 8] [--out frames.json] [--seconds 300]

A right kernel has to be judged right in every frame, a faulty one must not; the rewards say which frames training can
choose between. Ends with one JSON line; exit code 1 where the judge disagrees.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import statistics
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from jaxagent.synthesis.demo import faulty_steps, synthetic_tasks
from jaxagent.synthesis.expert import Draft, Writer
from jaxagent.synthesis.frames import CUDA, DIALECTS, Dialect, model_new_source
from jaxagent.synthesis.kernels import Program, parse_model
from jaxagent.synthesis.task_spaces import CPU_SPACE, GPU_SPACE
from rollout.parsers import make_parser
from sandbox.config import CompileConfig, JudgeConfig
from sandbox.judge.local import LocalJudge
from sandbox.types import Candidate, Judgement, Task


@dataclass(frozen=True, slots=True)
class Case:
    task: Task
    name: str
    """Of the frame, or of the fault."""
    candidate: Candidate
    is_right: bool


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--skill", choices=sorted(DIALECTS), default="cpp")
    parser.add_argument("--tasks", type=int, default=8)
    parser.add_argument("--seconds", type=float, default=600.0, help="what is not judged by then is left out")
    parser.add_argument("--out", type=Path)
    args = parser.parse_args()
    dialect = DIALECTS[args.skill]
    tasks, _ = synthetic_tasks(0, space=GPU_SPACE if dialect is CUDA else CPU_SPACE)
    step = max(1, len(tasks) // args.tasks)
    cases = [case for task in tasks[::step][: args.tasks] for case in _cases(task, dialect)]
    judged = asyncio.run(_judge(cases, dialect, seconds=args.seconds))
    rows = [_row(case, judgement) for case, judgement in judged]
    if args.out:
        args.out.write_text(json.dumps(rows, indent=1))
    _print_table(rows)
    wrong = [row for row in rows if row["accepted"] != row["is_right"]]
    for row in wrong:
        print(f"{row['task']} {row['name']}: {row['outcome']}: {row['message'][:300]}")
    figures = {"judged": len(rows), "left_out": len(cases) - len(rows), "disagreements": len(wrong)}
    timed = [judgement for _, judgement in judged if judgement.eager_ms is not None]
    figures |= {"judgement_s": _seconds(timed), "unrest": _unrest(timed)}
    print(json.dumps({"name": "expert_frames", "figures": figures, "targets": {"disagreements": 0}, "ok": not wrong}))
    return 1 if wrong else 0


def _cases(task: Task, dialect: Dialect) -> list[Case]:
    writer, program = Writer(make_parser("hermes"), dialect), parse_model(task.code)
    drafts = [(str(style), Draft(style, program.steps), True) for style in dialect.styles]
    damages = ["undeclared", "unclosed", *(["out_of_bounds"] if dialect is CUDA else [])]
    drafts += [(damage, Draft(dialect.best, program.steps, damage), False) for damage in damages]
    drafts += [(kind, Draft(dialect.best, found[0]), False) for kind, found in faulty_steps(program).items() if found]
    return [Case(task, name, _candidate(writer, program, draft, dialect), is_right) for name, draft, is_right in drafts]


def _candidate(writer: Writer, program: Program, draft: Draft, dialect: Dialect) -> Candidate:
    files = {dialect.kernel: writer.kernel_text(program, draft), "model_new.py": model_new_source(program, dialect)}
    return Candidate(files=files)


async def _judge(cases: Sequence[Case], dialect: Dialect, *, seconds: float) -> list[tuple[Case, Judgement]]:
    """In the order of `cases`, those that were judged in time."""
    cores = os.cpu_count() or 1
    device = "cuda" if dialect is CUDA else "cpu"
    judge = LocalJudge(
        JudgeConfig(device=device, quiet=False, cores_per_device=min(4, cores)), CompileConfig(num_workers=cores)
    )
    began, found = time.monotonic(), {}

    async def one(index: int, case: Case) -> None:
        found[index] = await judge.judge(case.task, case.candidate, skill=dialect.skill)
        print(f"{time.monotonic() - began:6.1f} s {len(found)}/{len(cases)} {case.name}", file=sys.stderr, flush=True)

    judging = [asyncio.create_task(one(index, case)) for index, case in enumerate(cases)]
    try:
        done, waiting = await asyncio.wait(judging, timeout=seconds)
        for task in waiting:
            task.cancel()
        await asyncio.gather(*waiting, return_exceptions=True)
        for task in done:
            task.result()
    finally:
        await judge.close()
    return [(cases[index], found[index]) for index in sorted(found)]


def _row(case: Case, judgement: Judgement) -> dict[str, Any]:
    times = {name: getattr(judgement, name) for name in ("candidate_ms", "eager_ms", "compile_ms")}
    said = {"outcome": str(judgement.outcome), "accepted": judgement.accepted, "reward": judgement.reward}
    about = {"task": case.task.task_id, "ops": case.task.ops, "name": case.name, "is_right": case.is_right}
    return about | said | times | {"message": judgement.message}


def _seconds(timed: Sequence[Judgement]) -> dict[str, float]:
    """Of judgements with the clock, without what their task's baseline took."""
    return _summary([each.details["phases"]["total_s"] - each.details["phases"]["baseline_s"] for each in timed])


def _unrest(timed: Sequence[Judgement]) -> dict[str, float]:
    """Largest over smallest ratio of eager and candidate in the first five rounds of a judgement."""
    rounds = [each.details["round_ratios"][:5] for each in timed]
    return _summary([max(ratios) / min(ratios) for ratios in rounds])


def _summary(values: Sequence[float]) -> dict[str, float]:
    if not values:
        return {}
    return {"number": len(values), "median": statistics.median(values), "min": min(values), "max": max(values)}


def _print_table(rows: Sequence[dict[str, Any]]) -> None:
    print("| kernel | right | accepted | outcomes | rewards | eager / its time | torch.compile / its time |")
    print("| --- | --- | --- | --- | --- | --- | --- |")
    for name in dict.fromkeys(row["name"] for row in rows):
        some = [row for row in rows if row["name"] == name]
        outcomes = ", ".join(sorted({row["outcome"] for row in some}))
        rewards = " ".join(f"{row['reward']:g}" for row in some if row["reward"] is not None)
        ratios = [_spread([row[base] / row["candidate_ms"] for row in some if row["candidate_ms"] and row[base]])
                  for base in ("eager_ms", "compile_ms")]  # fmt: skip
        accepted = f"{sum(row['accepted'] for row in some)}/{len(some)}"
        print(f"| {name} | {some[0]['is_right']} | {accepted} | {outcomes} | {rewards} | {ratios[0]} | {ratios[1]} |")


def _spread(ratios: Sequence[float]) -> str:
    if not ratios:
        return "-"
    return f"{statistics.median(ratios):.2f} ({min(ratios):.2f}–{max(ratios):.2f})"


if __name__ == "__main__":
    sys.exit(main())
