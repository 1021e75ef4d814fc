"""How steady is a verdict? Whole judgements of one kernel, each in new processes with fresh inputs and all checks."""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Iterator
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
            figures[case.name] = measure(judge, case, artifact, arguments.repeats)
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
        quiet=quiet,
        timed_rounds=arguments.rounds,
        baseline_dir=folder / "times",
    )
    judge = make_device_judge(config, 0, folder / "quiet")
    try:
        yield judge
    finally:
        judge.close()


def measure(judge: DeviceJudge, case: gpu_cases.Case, artifact: Artifact, repeats: int) -> dict[str, Any]:
    """Variation of candidate over eager, of the two apart, and what a judgement took. Trouble of ours is counted."""
    judgements: list[Judgement] = []
    seconds, trouble = [], []
    for _ in range(repeats):
        began = time.perf_counter()
        try:
            judgements.append(judge.judge(case.task, case.good, artifact, skill="cuda"))
        except DeviceError as error:
            trouble.append(str(error)[:200])
            continue
        seconds.append(time.perf_counter() - began)
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
        "judgement_s": {"median": statistics.median(seconds), "min": min(seconds), "max": max(seconds)},
        "phases": accepted[-1].details["phases"],
        "turn": accepted[-1].details["turn"],
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
