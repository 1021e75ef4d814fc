"""How steady is the judge on this machine's GPU? Judges hand-written kernels again and again; ends with one JSON line.

.venv/bin/python scripts/bench_judge_gpu.py [--repeats 6] [--cases softmax …] [--rounds 9]

Every repeat is a whole judgement: new processes, fresh inputs, all checks, candidate and eager timed in turn. What
counts is the coefficient of variation (standard deviation over mean) of candidate over eager across repeats.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from sandbox.compile import CompileService
from sandbox.config import CompileConfig, JudgeConfig
from sandbox.judge.coordinator import make_device_judge
from sandbox.judge.device import DeviceJudge
from sandbox.types import Artifact, Judgement

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests" / "sandbox" / "gpu"))
import gpu_cases

TARGET_VARIATION = 0.01


def compile_all(cases: list[gpu_cases.Case], folder: Path) -> dict[str, Artifact]:
    service = CompileService(CompileConfig(cache_dir=folder, num_workers=8))

    def one(case: gpu_cases.Case) -> Artifact:
        result = service.compile("cuda", case.good)
        assert result.artifact is not None, f"{case.name}: {result.message}"
        return result.artifact

    with ThreadPoolExecutor(8) as pool:
        return {case.name: artifact for case, artifact in zip(cases, pool.map(one, cases), strict=True)}


def variation(values: list[float]) -> float:
    """Standard deviation over mean."""
    return statistics.stdev(values) / statistics.fmean(values)


def outside_ratio(judgement: Judgement) -> float:
    """Candidate over eager by the supervisor's clock."""
    times = judgement.details["outside_ms"]
    return times["candidate"]["median_ms"] / times["eager"]["median_ms"]


def measure(judge: DeviceJudge, case: gpu_cases.Case, artifact: Artifact, repeats: int) -> dict[str, Any]:
    judgements, seconds = [], []
    judge.baseline(case.task)
    for _ in range(repeats):
        began = time.perf_counter()
        judgements.append(judge.judge(case.task, case.good, artifact, skill="cuda"))
        seconds.append(time.perf_counter() - began)
    accepted = [judgement for judgement in judgements if judgement.accepted]
    if len(accepted) < repeats:
        refused = next(judgement for judgement in judgements if not judgement.accepted)
        return {"verdict": str(refused.outcome), "message": refused.message}
    ratios = [judgement.candidate_ms / judgement.eager_ms for judgement in accepted]  # type: ignore[operator]
    return {
        "verdict": "correct",
        "rewards": sorted({judgement.reward for judgement in accepted}),
        "candidate_ms": statistics.median(judgement.candidate_ms for judgement in accepted),
        "eager_ms": statistics.median(judgement.eager_ms for judgement in accepted),
        "compile_ms": statistics.median(judgement.compile_ms for judgement in accepted),
        "candidate_outside_ms": statistics.median(
            judgement.details["outside_ms"]["candidate"]["median_ms"] for judgement in accepted
        ),
        "floor_ms": accepted[0].details["floor"].get("floor_ms"),
        "copy_gb_s": accepted[0].details["floor"].get("copy_gb_s"),
        "variation": variation(ratios),
        "variation_outside": variation([outside_ratio(judgement) for judgement in accepted]),
        "ratios": [round(ratio, 4) for ratio in ratios],
        "judgement_s": statistics.median(seconds),
        "phases": accepted[-1].details["phases"],
    }


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repeats", type=int, default=6)
    parser.add_argument("--rounds", type=int, default=JudgeConfig().timed_rounds)
    parser.add_argument("--cases", nargs="*", choices=[case.name for case in gpu_cases.CASES])
    arguments = parser.parse_args()
    cases = [case for case in gpu_cases.CASES if not arguments.cases or case.name in arguments.cases]
    with tempfile.TemporaryDirectory(prefix="bench-judge-gpu-") as name:
        folder = Path(name)
        artifacts = compile_all(cases, folder / "compile")
        config = JudgeConfig(
            device="cuda", cores_per_device=2, quiet=False, timed_rounds=arguments.rounds, baseline_dir=folder / "times"
        )
        judge = make_device_judge(config, 0, folder / "quiet")
        figures: dict[str, dict[str, Any]] = {}
        try:
            for case in cases:
                figures[case.name] = measure(judge, case, artifacts[case.name], arguments.repeats)
                print(f"{case.name}: {json.dumps(figures[case.name])}", flush=True)
        finally:
            judge.close()
    steady = {name: figure.get("variation", float("inf")) <= TARGET_VARIATION for name, figure in figures.items()}
    print(
        json.dumps(
            {
                "name": "judge_gpu",
                "figures": figures,
                "targets": {"variation": TARGET_VARIATION},
                "ok": all(steady.values()),
            }
        )
    )
    return 0 if all(steady.values()) else 1


if __name__ == "__main__":
    raise SystemExit(main())
