"""The kernels behind an evaluation's results, as files: kernels/ in its folder, which `--policy kernels:DIR` reads.

kernels/level_1_problem_7_sample_0/           model_new.py and kernels/, of a KernelBench problem
kernels/level_1_problem_7_sample_0_kernel.py  the same where model_new.py is all there is
kernels/TASK_ID/sample_0/                     of a task from elsewhere

Of a policy's samples they are put together from its tool calls, up to the solution that counts: what a shell command
did to a file is not on record. Judging the folder again shows whether anything is missing.
"""

from __future__ import annotations

import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path, PurePosixPath

from jaxagent.evaluation.problems import Problem
from jaxagent.evaluation.results import best_judgement
from jaxagent.files.write import write_atomically
from rollout.file_history import FileHistory
from rollout.types import Trajectory, Turn
from sandbox.skill import KERNEL_NAME

FOLDER = "kernels"
_FILE_TOOLS = ("write", "edit", "multi_edit", "read")


def write_kernels(
    folder: Path,
    trajectories: Sequence[Trajectory],
    problems: Mapping[str, Problem],
    *,
    stored: Mapping[str, Mapping[str, str]],
) -> int:
    """Writes folder/kernels anew; returns how many samples have files. `stored`: trajectory id -> files of a kernel
    that was not sampled here."""
    root = folder / FOLDER
    shutil.rmtree(root, ignore_errors=True)
    written = 0
    for trajectory in trajectories:
        files = stored.get(trajectory.trajectory_id) or final_files(trajectory)
        if "model_new.py" in files:
            _write(root, trajectory, problems[trajectory.task_id], files)
            written += 1
    return written


def final_files(trajectory: Trajectory) -> dict[str, str]:
    """model_new.py and kernels/* when the best solution was judged, by path; {} where no tool wrote a file."""
    best, history = best_judgement(trajectory), FileHistory()
    for turn in trajectory.turns:
        is_best = turn.judgement is best and best is not trajectory.judgement
        calls = len(turn.tool_calls) if not is_best else _judged_calls(turn)
        for place, call in enumerate(turn.tool_calls[:calls]):
            history.follow(call, turn.observations[place] if place < len(turn.observations) else None)
        if is_best:
            break
    return {path: text for path, text in history.texts.items() if _is_judged(path)}


def _judged_calls(turn: Turn) -> int:
    """How many calls came before the turn's last judgement: it was made by the last one that is no file tool."""
    names = [call.name for call in turn.tool_calls]
    return max((place + 1 for place, name in enumerate(names) if name not in _FILE_TOOLS), default=len(names))


def _is_judged(path: str) -> bool:
    parts = PurePosixPath(path).parts
    is_kernel = len(parts) == 2 and parts[0] == "kernels" and KERNEL_NAME.fullmatch(parts[1])
    return path == "model_new.py" or bool(is_kernel)


def _write(root: Path, trajectory: Trajectory, problem: Problem, files: Mapping[str, str]) -> None:
    name = f"level_{problem.level}_problem_{problem.number}_sample_{trajectory.sample_index}"
    if problem.level is None:
        target = root / trajectory.task_id / f"sample_{trajectory.sample_index}"
    elif len(files) == 1:
        root.mkdir(exist_ok=True)
        write_atomically(root / f"{name}_kernel.py", files["model_new.py"])
        return
    else:
        target = root / name
    for path, text in files.items():
        (target / path).parent.mkdir(parents=True, exist_ok=True)
        write_atomically(target / path, text)
