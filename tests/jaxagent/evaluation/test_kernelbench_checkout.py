"""A KernelBench checkout reads our files, and we read its tasks.

JAXAGENT_KERNELBENCH=PATH names the checkout; nothing of it is part of this project, so without it these are skipped.
JAXAGENT_KERNELBENCH_PYTHON names the interpreter that has its requirements, if it is not the one of the tests.
"""

from __future__ import annotations

import json
import math
import os
import random
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest
from test_scorecard import judged, sample

from jaxagent.evaluation.aggregate import fast_p, score
from jaxagent.evaluation.degenerate import DEGENERATE
from jaxagent.evaluation.families import OTHER, family_of
from jaxagent.evaluation.kernelbench import write_kernelbench
from jaxagent.evaluation.kernelbench_baselines import write_baselines
from jaxagent.evaluation.problems import number_problems
from sandbox.tasks import load_tasks

PYTHON = os.environ.get("JAXAGENT_KERNELBENCH_PYTHON", sys.executable)
CHECKOUT = os.environ.get("JAXAGENT_KERNELBENCH")
pytestmark = pytest.mark.skipif(CHECKOUT is None, reason="JAXAGENT_KERNELBENCH names no KernelBench checkout")
ANALYSIS = """
import json, sys
import benchmark_eval_analysis as analysis
name, level, baseline, folder, out = sys.argv[1:6]
found = analysis.analyze_greedy_eval(name, "here", "ours", int(level), baseline_file=baseline, eval_results_dir=folder)
json.dump(found, open(out, "w"))
"""


@pytest.fixture(scope="module")
def checkout() -> Path:
    return Path(CHECKOUT or "").expanduser().resolve()


def test_every_problem_of_levels_1_to_3_is_a_task_with_its_number(checkout: Path):
    tasks = [task for level in (1, 2, 3) for task in load_tasks(str(checkout / "KernelBench" / f"level{level}"))]
    problems = number_problems(tasks)
    levels = Counter(problem.level for problem in problems.values())
    assert levels == {1: 100, 2: 100, 3: 50}
    for task in tasks:
        assert task.task_id.startswith(f"level{problems[task.task_id].level}/{problems[task.task_id].number}_")
    assert DEGENERATE.keys() <= set(problems.values())
    families = Counter(family_of(task.code) for task in tasks)
    assert families[OTHER] <= 5, families
    assert families["convolution"] > 60 and families["matrix product"] > 40


def test_its_analysis_of_our_files_finds_what_we_found(checkout: Path, tmp_path: Path):
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(
        [str(checkout / "src"), str(checkout / "scripts"), os.environ.get("PYTHONPATH", "")])}  # fmt: skip
    probe = subprocess.run([PYTHON, "-c", "import benchmark_eval_analysis, kernelbench.score"], env=environment,
                           capture_output=True, text=True)  # fmt: skip
    if probe.returncode:
        pytest.skip(f"KernelBench's own requirements are not installed: {probe.stderr.strip().splitlines()[-1]}")
    tasks, rng = load_tasks(str(checkout / "KernelBench" / "level1")), random.Random(0)
    speedups = [None if rng.random() < 0.3 else math.exp(rng.gauss(0, 0.7)) for _ in tasks]
    trajectories = [
        sample(task, 0, judged(speedup, over_compile=1.3)) for task, speedup in zip(tasks, speedups, strict=True)
    ]
    trajectories += [sample(task, 1, judged(1.0)) for task in tasks]
    problems = number_problems(tasks)
    folder = tmp_path / "ours"
    folder.mkdir()
    write_kernelbench(folder, trajectories, problems)
    write_baselines(folder, trajectories, problems, prepared={task.task_id: (1.0, 1.0) for task in tasks})
    first = [trajectory.judgement for trajectory in trajectories if trajectory.sample_index == 0]
    for baseline, file in (("eager", "baseline_time_torch.json"),
                           ("compile", "baseline_time_torch_compile_inductor_default.json")):  # fmt: skip
        out = tmp_path / f"{baseline}.json"
        arguments = ["ours", "1", str(folder / "timing" / file), str(tmp_path), str(out)]
        run = subprocess.run([PYTHON, "-c", ANALYSIS, *arguments], env=environment, capture_output=True, text=True)
        assert run.returncode == 0, run.stderr
        theirs = json.loads(out.read_text())
        assert (theirs["total_count"], theirs["total_eval"]) == (100, 100)
        assert theirs["correct_count"] == sum(judgement.accepted for judgement in first)
        for threshold, share in theirs["fast_p"].items():
            assert share == pytest.approx(fast_p(first, float(threshold), baseline=baseline))  # type: ignore[arg-type]
        ours = getattr(score(first), f"geomean_vs_{baseline}")
        assert theirs["geo_mean_speedup"] == pytest.approx(ours, rel=1e-9)
        assert theirs["pass_at_k"]["averages"]["avg_pass@1"] == pytest.approx(
            sum(trajectory.judgement.accepted for trajectory in trajectories) / len(trajectories)
        )
