"""Baseline times as KernelBench keeps them: results/timing/HARDWARE/BASELINE.json, here in the evaluation's timing/.

Keys are the problems' file names. Where sample 0 of a problem was timed, the baseline is the one that it was timed
against, alternating with it; otherwise the one that was measured ahead. `mean` is the median that decides here, as
`runtime` is in eval_results.json: so KernelBench's analysis gives the speed-ups that were judged.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from jaxagent.evaluation.problems import Problem
from jaxagent.evaluation.results import best_judgement
from jaxagent.files.write import write_json
from rollout.types import Trajectory
from sandbox.baselines import machine_fingerprint
from sandbox.types import Judgement

FILES = {"eager": "baseline_time_torch.json", "compile": "baseline_time_torch_compile_inductor_default.json"}


def write_baselines(
    folder: Path,
    trajectories: Sequence[Trajectory],
    problems: Mapping[str, Problem],
    *,
    prepared: Mapping[str, Sequence[float]],
) -> list[Path]:
    """`prepared`: task id -> (eager_ms, compile_ms) measured ahead. Nothing is written where no task has a level."""
    timed = {t.task_id: best_judgement(t) for t in trajectories if t.sample_index == 0}
    written = []
    for place, (kind, name) in enumerate(FILES.items()):
        levels: dict[str, dict[str, Any]] = {}
        for task_id, problem in sorted(problems.items(), key=lambda item: (item[1].level or 0, item[1].number)):
            stats = _stats(kind, timed.get(task_id), prepared[task_id][place] if task_id in prepared else None)
            if problem.level is not None and stats is not None:
                levels.setdefault(f"level{problem.level}", {})[f"{task_id.rpartition('/')[2]}.py"] = stats
        if levels:
            (folder / "timing").mkdir(exist_ok=True)
            write_json(folder / "timing" / name, levels)
            written.append(folder / "timing" / name)
    return written


def _stats(kind: str, judgement: Judgement | None, prepared_ms: float | None) -> dict[str, Any] | None:
    """One entry; std, min and max only where the judgement has the series."""
    judged_ms = getattr(judgement, f"{kind}_ms") if judgement is not None and judgement.accepted else None
    median = judged_ms or prepared_ms
    if median is None:
        return None
    series = judgement.details.get(kind, {}) if judgement is not None and judged_ms else {}
    spread = {name: float(f"{series[f'{name}_ms']:.3g}") for name in ("std", "min", "max") if f"{name}_ms" in series}
    where = {"num_trials": series.get("rounds"), "hardware": machine_fingerprint(), "device": "judge"}
    return {"mean": median, **spread, **where}
