"""The folder of one evaluation: what was asked for, the samples, and what came out of them.

evaluation.json     policy, protocol, tasks …: an evaluation is only continued with the same ones
store/              every sample as a trajectory, as soon as it is there
model/              of a run: the weights that are evaluated, also when the run goes on meanwhile
results.jsonl       one row a sample      summary.json, table.md      figures by level and by family of operators
eval_results.json   in KernelBench's form (pass_at_k_results.json with it; in levelN/ where there are several levels)
timing/             the baselines in KernelBench's form
kernels/            the files behind the results
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from jaxagent.config.load import ConfigError
from jaxagent.evaluation.kernelbench import write_kernelbench
from jaxagent.evaluation.kernelbench_baselines import write_baselines
from jaxagent.evaluation.policy_source import KernelsSource
from jaxagent.evaluation.problems import Problem, number_problems
from jaxagent.evaluation.report import Report, markdown
from jaxagent.evaluation.request import EvaluationRequest
from jaxagent.evaluation.results import best_judgement
from jaxagent.evaluation.written_kernels import write_kernels
from jaxagent.files.write import write_atomically, write_json
from rollout.types import Trajectory
from sandbox.types import Task

SCHEMA_VERSION = 1


class EvaluationFolder:
    """Claims `request.out` for a request, or reopens it for the same one."""

    def __init__(self, request: EvaluationRequest) -> None:
        """Raises ConfigError where the folder belongs to another evaluation or to something else."""
        self.root, self._request = request.out, request
        self.root.mkdir(parents=True, exist_ok=True)
        self._path = self.root / "evaluation.json"
        self._asked = _identity(request)
        if self._path.exists():
            self._record = json.loads(self._path.read_text())
            self._check_same()
        elif any(self.root.iterdir()):
            raise ConfigError(f"--out {self.root}: the folder holds something that is no evaluation; choose a new one")
        else:
            config = json.loads(request.config.model_dump_json())
            asked = {"schema_version": SCHEMA_VERSION, "asked": self._asked}
            self._record = asked | {"config": config, "tasks_source": request.tasks_source}
            write_json(self._path, self._record)

    @property
    def store(self) -> Path:
        return self.root / "store"

    @property
    def verdicts(self) -> Path:
        return self.root / "verdicts.jsonl"

    @property
    def model(self) -> Path:
        return self.root / "model"

    def get(self, key: str) -> Any:
        """What an earlier start noted down; None where it did not."""
        return self._record.get(key)

    def note(self, key: str, value: Any) -> None:
        """Keeps a fact that a continued evaluation must not find out anew."""
        self._record[key] = value
        write_json(self._path, self._record)

    def write_results(
        self, trajectories: Sequence[Trajectory], report: Report, *, stored: Mapping[str, Mapping[str, str]]
    ) -> None:
        """Everything that comes out of an evaluation, also of one that ended early; `stored` as of write_kernels."""
        problems = number_problems(self._request.tasks)
        by_id = {task.task_id: task for task in self._request.tasks}
        lines = [json.dumps(result_row(t, by_id[t.task_id], problems[t.task_id])) for t in trajectories]
        write_atomically(self.root / "results.jsonl", "".join(f"{line}\n" for line in lines))
        write_kernelbench(self.root, trajectories, problems)
        write_kernels(self.root, trajectories, problems, stored=stored)
        write_baselines(self.root, trajectories, problems, prepared=self.get("baselines") or {})
        write_atomically(self.root / "table.md", markdown(report))
        summary = {key: self._asked[key] for key in ("policy", "protocol", "skill", "seed")}
        write_json(self.root / "summary.json", summary | {"weights": self.get("weights")} | report.to_json())

    def _check_same(self) -> None:
        before = self._record["asked"]
        different = [key for key in self._asked if before.get(key) != self._asked[key]]
        if different:
            key = different[0]
            raise ConfigError(
                f"--out {self.root}: an evaluation with another {key} is there ({_short(before.get(key))}, now "
                f"{_short(self._asked[key])}); give the same one to continue it, or choose another folder"
            )


def result_row(trajectory: Trajectory, task: Task, problem: Problem) -> dict[str, Any]:
    """One row of results.jsonl: the best solution of a sample (`judgement`), and how it came about."""
    judgement = best_judgement(trajectory)
    return {
        "trajectory_id": trajectory.trajectory_id,
        "task_id": task.task_id,
        "source": task.source,
        "level": problem.level,
        "problem_id": problem.number,
        "sample_index": trajectory.sample_index,
        "seed": trajectory.seed,
        "turns": len(trajectory.turns),
        "stop_reason": str(trajectory.stop_reason),
        "seconds": trajectory.seconds,
        "judgement": judgement.to_json(),
    }


def _identity(request: EvaluationRequest) -> dict[str, Any]:
    """What has to be the same for samples to belong together. More samples a task may be asked for later."""
    config = request.config
    is_stored = isinstance(request.policy, KernelsSource)
    return {
        "policy": str(request.policy),
        "protocol": config.judge.protocol,
        "skill": config.tasks.skill,
        "seed": config.seed,
        "dialogue": None if is_stored else json.loads(config.evaluation.dialogue.model_dump_json()),
        "tasks": {task.task_id: hashlib.sha256(task.code.encode()).hexdigest()[:12] for task in request.tasks},
    }


def _short(value: Any) -> str:
    text = json.dumps(value)
    return text if len(text) <= 120 else f"{text[:117]}…"
