"""The files behind a result: those that were judged, and in a form that is read again."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import numpy as np
from test_scorecard import judged, kernelbench_task, sample

from jaxagent.evaluation.problems import number_problems
from jaxagent.evaluation.stored_kernels import find_kernels
from jaxagent.evaluation.written_kernels import final_files, write_kernels
from rollout.types import ToolCall, Trajectory, Turn
from sandbox.types import Judgement, Task

TASK, OTHER = kernelbench_task(1, "7_Tanh"), Task(task_id="group/free", code="", source="file")


def turn(*calls: tuple[str, dict], judgement: Judgement | None = None) -> Turn:
    none = np.zeros(0, np.int32)
    return Turn(prompt_token_ids=none, token_ids=none, logprobs=none.astype(np.float32), policy_versions=none, text="",
                tool_calls=[ToolCall(name=name, arguments=arguments) for name, arguments in calls],
                observations=["done"] * len(calls), judgement=judgement)  # fmt: skip


def write(path: str, content: str) -> tuple[str, dict]:
    return "write", {"path": path, "content": content}


def trajectory(*turns: Turn, final: Judgement, task: Task = TASK, index: int = 0) -> Trajectory:
    return dataclasses.replace(sample(task, index, final), turns=list(turns))


PROFILE = ("bash", {"command": "python3 utils/profiling.py"})


def test_files_are_those_of_the_solution_that_counts_not_of_the_end():
    best = dataclasses.replace(judged(3.0), reward=3.0)
    sampled = trajectory(
        turn(write("model_new.py", "first"), write("kernels/k.cpp", "slow"), write("notes.txt", "mine")),
        turn(("edit", {"path": "kernels/k.cpp", "old": "slow", "new": "fast"}), PROFILE, write("kernels/k.cpp", "spoilt"),
             judgement=best),
        turn(write("model_new.py", "last")),
        final=judged(None),
    )  # fmt: skip
    assert final_files(sampled) == {"model_new.py": "first\n", "kernels/k.cpp": "fast\n"}
    until_the_end = dataclasses.replace(sampled, judgement=dataclasses.replace(judged(9.0), reward=3.0))
    assert final_files(until_the_end) == {"model_new.py": "last\n", "kernels/k.cpp": "spoilt\n"}


def test_what_is_written_is_found_again_as_stored_kernels(tmp_path: Path):
    sampled = [
        trajectory(turn(write("model_new.py", "a"), write("kernels/k.cpp", "b")), final=judged(1.0)),
        trajectory(turn(write("model_new.py", "alone")), final=judged(1.0), index=1),
        trajectory(final=judged(None), index=2),
        trajectory(turn(write("model_new.py", "free")), final=judged(1.0), task=OTHER),
    ]
    stored = {sampled[2].trajectory_id: {"model_new.py": "kept"}}
    (tmp_path / "kernels").mkdir()
    (tmp_path / "kernels" / "of_an_earlier_time").write_text("")
    assert write_kernels(tmp_path, sampled, number_problems([TASK, OTHER]), stored=stored) == 4
    found = find_kernels(tmp_path / "kernels", [TASK, OTHER])
    assert [(kernel.task.task_id, kernel.sample_index, kernel.candidate.files) for kernel in found] == [
        ("level1/7_Tanh", 0, {"model_new.py": "a\n", "kernels/k.cpp": "b\n"}),
        ("level1/7_Tanh", 1, {"model_new.py": "alone\n"}),
        ("level1/7_Tanh", 2, {"model_new.py": "kept"}),
        ("group/free", 0, {"model_new.py": "free\n"}),
    ]
    assert sorted(path.name for path in (tmp_path / "kernels").iterdir()) == [
        "group", "level_1_problem_7_sample_0", "level_1_problem_7_sample_1_kernel.py", "level_1_problem_7_sample_2_kernel.py"
    ]  # fmt: skip
