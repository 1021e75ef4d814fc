"""How steady is a verdict? Whole judgements of one kernel, each in new processes with fresh inputs and all checks, as
many side by side as `--jobs` says."""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import gpu_cases

from sandbox.compile import CompileService
from sandbox.config import CompileConfig, JudgeConfig
from sandbox.judge.device import DeviceJudge
from sandbox.judge.local import make_device_judge
from sandbox.types import Artifact, DeviceError, Judgement

TARGET = 0.01


def run(arguments: argparse.Namespace, folder: Path) -> dict[str, Any]:
    figures: dict[str, Any] = {}
    with opened(arguments, folder, quiet=False) as judge:
        for case, artifact in compiled(arguments, folder):
            judge.baseline(case.task)
            figures[case.name] = measure(judge, case, artifact, arguments.repeats, jobs=arguments.jobs)
            print(f"{case.name}: {figures[case.name]}", flush=True)
    return {"cases": figures, "target": TARGET, "ok": all(each["variation"] <= TARGET for each in figures.values())}


def compiled(arguments: argparse.Namespace, folder: Path) -> list[tuple[gpu_cases.Case, Artifact]]:
    service = CompileService(CompileConfig(cache_dir=folder / "compile", num_workers=arguments.compile_workers))
    found = []
    for case in gpu_cases.CASES:
        if case.name in arguments.cases:
            result = service.compile("cuda", case.good)
            assert result.artifact is not None, f"{case.name}: {result.message}"
            found.append((case, result.artifact))
    return found


@contextmanager
def opened(arguments: argparse.Namespace, folder: Path, *, quiet: bool) -> Iterator[DeviceJudge]:
    config = JudgeConfig(
        device="cuda",
        cores_per_device=arguments.cores,
        jobs_per_device=arguments.jobs,
        quiet=quiet,
        timed_rounds=arguments.rounds,
        baseline_dir=folder / "times",
    )
    judge = make_device_judge(config, 0, folder / "quiet")
    try:
        yield judge
    finally:
        judge.close()


def measure(judge: DeviceJudge, case: gpu_cases.Case, artifact: Artifact, repeats: int, *, jobs: int) -> dict[str, Any]:
    """Variation of candidate over eager, of the two apart, and what a judgement took. Trouble of ours is counted."""
    judgements: list[Judgement] = []
    seconds: list[float] = []
    trouble: list[str] = []

    def one(number: int) -> None:
        began = time.perf_counter()
        try:
            judgements.append(judge.judge(case.task, case.good, artifact, skill="cuda"))
        except DeviceError as error:
            trouble.append(str(error)[:200])
            return
        seconds.append(time.perf_counter() - began)

    start = time.perf_counter()
    with ThreadPoolExecutor(jobs) as threads:
        list(threads.map(one, range(repeats)))
    elapsed = time.perf_counter() - start
    accepted = [each for each in judgements if each.accepted]
    refused = [each.message[:200] for each in judgements if not each.accepted]
    figures: dict[str, Any] = {"accepted": len(accepted), "refused": refused, "trouble": trouble}
    if len(accepted) < 2:
        return figures | {"variation": float("inf")}
    candidate, eager = ([each.details[who]["median_ms"] for each in accepted] for who in ("candidate", "eager"))
    ratios = [mine / theirs for mine, theirs in zip(candidate, eager, strict=True)]
    outside = [_outside(each) for each in accepted]
    return figures | {
        "variation": variation(ratios),
        "variation_candidate": variation(candidate),
        "variation_eager": variation(eager),
        "variation_outside": variation(outside),
        "candidate_ms": statistics.median(candidate),
        "eager_ms": statistics.median(eager),
        "rewards": sorted({each.reward for each in accepted if each.reward is not None}),
        "judgements_per_minute": 60 * repeats / elapsed,
        "judgement_s": {"median": statistics.median(seconds), "min": min(seconds), "max": max(seconds)},
        "phases": accepted[-1].details["phases"],
        "turn": accepted[-1].details["turn"],
        "rounds": [each.details["candidate"]["rounds"] for each in accepted],
        "same_ms": [each.details["same_ms"] for each in accepted],
        "first_tries": [each.details["first_try"] for each in accepted if "first_try" in each.details],
        "still": sum(each.details["turn"]["still"] for each in accepted),
        "ratios": [round(ratio, 4) for ratio in ratios],
    }


def variation(values: list[float]) -> float:
    """Standard deviation over mean."""
    return statistics.stdev(values) / statistics.fmean(values)


def _outside(judgement: Judgement) -> float:
    """Candidate over eager by the supervisor's clock."""
    times = judgement.details["outside_ms"]
    return times["candidate"]["median_ms"] / times["eager"]["median_ms"]
