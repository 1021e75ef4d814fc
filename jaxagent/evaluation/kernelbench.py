"""KernelBench's result files: eval_results.json and pass_at_k_results.json, one pair a level, for its own analysis.

Keys are problem numbers as text, values a list with one record a sample. Times are milliseconds; a failed sample has
runtime -1.0. `runtime` is the median that was judged, where KernelBench puts the mean: both stand in runtime_stats.
"""

from __future__ import annotations

import platform
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from jaxagent.evaluation.aggregate import pass_at_k
from jaxagent.evaluation.problems import Problem
from jaxagent.evaluation.results import best_judgement
from jaxagent.evaluation.scorecard import ks_of
from jaxagent.files.write import write_json
from rollout.types import Trajectory
from sandbox.baselines import machine_fingerprint
from sandbox.types import Judgement, Outcome

FAILED_RUNTIME = -1.0
_ERROR_KEYS = {
    Outcome.COMPILE_ERROR: "compilation_error",
    Outcome.RUNTIME_ERROR: "runtime_error",
    Outcome.WRONG: "correctness_issue",
    Outcome.REFUSED: "other_error",
    Outcome.TIMEOUT: "error",
}
_NOT_COMPILED = (Outcome.COMPILE_ERROR, Outcome.REFUSED)


def write_kernelbench(folder: Path, trajectories: Sequence[Trajectory], problems: Mapping[str, Problem]) -> list[Path]:
    """Writes the files into `folder`, or into a folder levelN each where there are several levels; returns them."""
    levels = sorted({problems[t.task_id].level for t in trajectories}, key=lambda level: (level is None, level))
    written = []
    for level in levels:
        target = folder if len(levels) == 1 else folder / ("other" if level is None else f"level{level}")
        target.mkdir(exist_ok=True)
        results = _results([t for t in trajectories if problems[t.task_id].level == level], problems)
        write_json(target / "eval_results.json", results)
        written.append(target / "eval_results.json")
        if max(map(len, results.values())) > 1:
            write_json(target / "pass_at_k_results.json", pass_at_k_results(results))
            written.append(target / "pass_at_k_results.json")
    return written


def pass_at_k_results(results: Mapping[str, Sequence[Mapping[str, Any]]]) -> dict[str, Any]:
    """The content of pass_at_k_results.json, from that of eval_results.json; k as in our own table."""
    ks = ks_of(min(map(len, results.values())))
    problems = {}
    for number, samples in results.items():
        correct = sum(sample["correctness"] and sample["compiled"] for sample in samples)
        chances = {f"pass@{k}": pass_at_k(len(samples), correct, k) for k in ks}
        problems[number] = {"total_samples": len(samples), "correct_samples": correct} | chances
    return {
        "averages": {f"avg_pass@{k}": sum(p[f"pass@{k}"] for p in problems.values()) / len(problems) for k in ks},
        "metadata": {
            "total_problems": len(problems),
            "problems_with_samples": len(problems),
            "total_evaluated_samples": sum(p["total_samples"] for p in problems.values()),
            "total_correct_samples": sum(p["correct_samples"] for p in problems.values()),
        }
        | {f"pass@{k}_count": len(problems) for k in ks},
        "problems": problems,
    }


def _results(trajectories: Sequence[Trajectory], problems: Mapping[str, Problem]) -> dict[str, list[dict[str, Any]]]:
    results: dict[int, list[dict[str, Any]]] = {}
    for trajectory in sorted(trajectories, key=lambda t: (problems[t.task_id].number, t.sample_index)):
        record = {"sample_id": trajectory.sample_index} | _record(best_judgement(trajectory), trajectory.task_id)
        results.setdefault(problems[trajectory.task_id].number, []).append(record)
    return {str(number): records for number, records in results.items()}


def _record(judgement: Judgement, task_id: str) -> dict[str, Any]:
    where = {"hardware": machine_fingerprint(), "device": platform.machine()}
    metadata: dict[str, Any] = {"problem_name": task_id, **where}
    if (key := _ERROR_KEYS.get(judgement.outcome)) is not None:
        metadata |= {key: judgement.message, f"{key}_name": str(judgement.outcome)}
    if (checks := judgement.details.get("checks")) is not None:
        metadata["correctness_trials"] = f"({checks['num_checks']} / {checks['num_checks']})"
    is_timed = judgement.accepted and judgement.candidate_ms is not None
    return {
        "compiled": judgement.outcome not in _NOT_COMPILED,
        "correctness": judgement.accepted,
        "metadata": metadata,
        "runtime": judgement.candidate_ms if is_timed else FAILED_RUNTIME,
        "runtime_stats": _stats(judgement) | where if is_timed else {},
    }


def _stats(judgement: Judgement) -> dict[str, Any]:
    series = judgement.details.get("candidate", {})
    names = {"mean": "mean_ms", "std": "std_ms", "min": "min_ms", "max": "max_ms"}
    stats: dict[str, Any] = {name: float(f"{series[key]:.3g}") for name, key in names.items() if key in series}
    return stats | {"median": judgement.candidate_ms, "num_trials": series.get("rounds")}
