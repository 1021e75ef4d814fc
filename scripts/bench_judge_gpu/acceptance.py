"""Verdicts on good, slow and wrong kernels of all cases, all submitted at once to the whole judge."""

from __future__ import annotations

import argparse
import asyncio
import re
import statistics
import time
from pathlib import Path
from typing import Any

import agent_cases
import gpu_cases

from sandbox.config import CompileConfig, JudgeConfig
from sandbox.judge.local import LocalJudge
from sandbox.types import Candidate, Judgement, Outcome

SLOWER = 12
_LAUNCH = re.compile(r"^  (?=\w+_kernel<<<)", re.MULTILINE)
EXPECTED = {"good": {1, 2, 3}, "slow": {1}, "wrong": {-1}}
"""Rewards."""


def slow_kernel(case: gpu_cases.Case) -> str:
    """The same work many times over."""
    return _LAUNCH.sub(f"  for (int again = 0; again < {SLOWER}; ++again) ", case.kernel)


def submissions(skill: str) -> dict[tuple[str, str], tuple[gpu_cases.Case, Candidate]]:
    """By case and kind. What adds up in memory cannot be repeated, so it has no slow one."""
    cases = gpu_cases.CASES
    repeatable = [case for case in cases if "atomicAdd" not in case.kernel]
    if skill == "cuda":
        made = {(case.name, "good"): (case, case.good) for case in cases}
        made |= {(case.name, "wrong"): (case, case.bad) for case in cases}
        made |= {(case.name, "slow"): (case, case.candidate(kernel=slow_kernel(case))) for case in repeatable}
        return made
    slow = agent_cases.library(repeatable, edit=slow_kernel)
    made = {(case.name, "good"): (case, agent_cases.agent_candidate(case)) for case in cases}
    made |= {(case.name, "wrong"): (case, agent_cases.agent_candidate(case, wrong=True)) for case in cases}
    for case in repeatable:
        model_new = agent_cases.agent_candidate(case).files["model_new.py"]
        made[case.name, "slow"] = case, Candidate(files={"model_new.py": model_new} | slow)
    return made


def run(arguments: argparse.Namespace, folder: Path) -> dict[str, Any]:
    return asyncio.run(_run(arguments, folder))


async def _run(arguments: argparse.Namespace, folder: Path) -> dict[str, Any]:
    config = JudgeConfig(
        device="cuda",
        cores_per_device=arguments.cores,
        jobs_per_device=arguments.jobs,
        timed_rounds=arguments.rounds,
        baseline_dir=folder / "times",
    )
    found: dict[str, Any] = {}
    began = time.monotonic()
    for skill in arguments.skills:
        cache = arguments.cache if arguments.cache and skill == "cuda_agent" else folder / "compile"
        compile = CompileConfig(cache_dir=cache, num_workers=arguments.compile_workers, timeout_s=300)
        judge = LocalJudge(config, compile, registry_dir=folder / "quiet")
        try:
            if "baselines_s" not in found:
                times = await judge.prepare([case.task for case in gpu_cases.CASES])
                found |= {"baselines": times, "baselines_s": time.monotonic() - began}
                print(f"baselines of {len(times)} tasks: {found['baselines_s']:.1f} s", flush=True)
            found[skill] = await _judge_all(judge, skill)
        finally:
            await judge.close()
    return found | {"ok": all(not found[skill]["unexpected"] for skill in arguments.skills)}


async def _judge_all(judge: LocalJudge, skill: str) -> dict[str, Any]:
    began, wanted = time.monotonic(), submissions(skill)
    calls = [judge.judge(case.task, candidate, skill=skill) for case, candidate in wanted.values()]
    judgements = dict(zip(wanted, await asyncio.gather(*calls), strict=True))
    seconds = time.monotonic() - began
    timed = [each for each in judgements.values() if each.candidate_ms is not None]
    unexpected = {
        f"{name}, {kind}": each.message
        for (name, kind), each in judgements.items()
        if each.reward not in EXPECTED[kind] or each.outcome not in (Outcome.CORRECT, Outcome.WRONG)
    }
    figures = {
        "submissions": len(judgements),
        "seconds": seconds,
        "judgements_per_minute": 60 * len(judgements) / seconds,
        "unexpected": unexpected,
        "phases": _medians([each.details["phases"] for each in timed]),
        "turns": _medians([each.details["turn"] for each in timed]),
        "compile_s": _medians([{"compile_s": each.details.get("compile_s", 0.0)} for each in timed]),
        "stats": judge.stats(),
        "verdicts": [_row(*key, judgement) for key, judgement in judgements.items()],
    }
    names = ("submissions", "seconds", "judgements_per_minute", "phases", "turns", "unexpected")
    shown = {name: figures[name] for name in names}
    print(f"{skill}: {shown}", flush=True)
    return figures


def _row(name: str, kind: str, judgement: Judgement) -> dict[str, Any]:
    details = judgement.details
    return {
        "case": name,
        "kind": kind,
        "outcome": str(judgement.outcome),
        "reward": judgement.reward,
        "candidate_ms": judgement.candidate_ms,
        "eager_ms": judgement.eager_ms,
        "compile_ms": judgement.compile_ms,
        "outside_ms": details.get("outside_ms", {}).get("candidate", {}).get("median_ms"),
        "floor_ms": details.get("floor", {}).get("floor_ms"),
        "judgement_s": details["phases"]["total_s"] if "phases" in details else None,
        "rounds": details.get("candidate", {}).get("rounds"),
        "first_try": details.get("first_try"),
        "message": judgement.message[:200],
    }


def _medians(records: list[dict[str, Any]]) -> dict[str, float]:
    names = sorted({name for record in records for name in record})
    return {name: statistics.median(float(record.get(name, 0.0)) for record in records) for name in names}
