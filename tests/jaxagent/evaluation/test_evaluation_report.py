"""What stands beside the rows of an evaluation: families, degenerate problems, contamination, published figures."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import yaml
from test_scorecard import judged, kernelbench_task, sample

from jaxagent.config.load import dump_config, load_config
from jaxagent.evaluation.contamination import contamination
from jaxagent.evaluation.degenerate import DEGENERATE
from jaxagent.evaluation.families import family_of
from jaxagent.evaluation.kernelbench_baselines import write_baselines
from jaxagent.evaluation.policy_source import KernelsSource, RunSource
from jaxagent.evaluation.problems import Problem, number_problems
from jaxagent.evaluation.published import published_table
from jaxagent.evaluation.report import make_report, markdown
from jaxagent.evaluation.request import EvaluationRequest
from sandbox.types import Task

MODEL = """import torch
import torch.nn as nn
class Model(nn.Module):
    def __init__(self, {argument}):
        super().__init__()
        self.layer = {layer}
    def forward(self, {name}):
        return {body}
def get_inputs():
    return []
"""


def code(body: str, *, layer: str = "None", name: str = "x", argument: str = "n") -> str:
    return MODEL.format(body=body, layer=layer, name=name, argument=argument)


@pytest.mark.parametrize(
    ("body", "layer", "family"),
    [
        ("torch.relu(self.layer(x))", "nn.Conv2d(3, 8, 3)", "convolution"),
        ("x @ x.T", "None", "matrix product"),
        ("torch.mm(x, x)", "None", "matrix product"),
        ("torch.max(x, dim=1)[0]", "None", "reduction"),
        ("self.layer(x)", "nn.MaxPool2d(2)", "pooling"),
        ("torch.nn.functional.scaled_dot_product_attention(x, x, x)", "None", "attention"),
        ("self.layer(x)", "nn.LSTM(3, 4)", "recurrent"),
        ("self.layer(x)", "nn.GRUCell(3, 4)", "recurrent"),
        ("torch.softmax(x, dim=1)", "None", "softmax"),
        ("torch.cumsum(x, dim=1)", "None", "scan"),
        ("torch.nn.functional.gelu(x)", "None", "activation"),
        ("torch.randn(3).normal_()", "None", "other"),
        ("convert(x)", "None", "other"),
    ],
)
def test_a_task_belongs_to_its_dearest_operator(body, layer, family):
    assert family_of(code(body, layer=layer)) == family


def test_code_without_a_model_belongs_nowhere():
    assert family_of("x = 1") == family_of("this is not python") == "other"


def test_contamination_sees_through_names_and_formatting_and_tells_numbers_apart():
    train = [Task(task_id="t", code=code("self.layer(x)", layer="nn.Linear(3, 4)"))]
    renamed = code("self.layer(inputs)", layer="nn.Linear(3,  4)", name="inputs", argument="size: int")
    evaluated = [
        Task(task_id="renamed", code=renamed.replace("super()", '"""Says so."""\n        super()')),
        Task(task_id="larger", code=code("self.layer(x)", layer="nn.Linear(30, 40)")),
        Task(task_id="another", code=code("self.layer(x)", layer="nn.Conv1d(3, 4)")),
        Task(task_id="swapped", code=code("self.layer(n)", layer="nn.Linear(3, 4)")),
    ]
    found = contamination(evaluated, train, train_source="tasks.parquet")
    assert (found.same, found.same_structure) == (["renamed"], ["larger"])
    assert found.sentence(4) == (
        "Contamination: of 4 evaluated tasks 1 are among the 1 training tasks (tasks.parquet), and 1 more differ from one "
        "in numbers alone: renamed, larger"
    )


def test_degenerate_problems_are_named_and_the_table_stands_with_and_without_them(tmp_path: Path):
    tasks = [kernelbench_task(2, "9_Zero"), kernelbench_task(2, "11_Honest"), kernelbench_task(1, "9_Honest")]
    trajectories = [sample(task, 0, judged(2.0 if "Zero" in task.task_id else None)) for task in tasks]
    config = load_config(Path("configs/demo.yaml"))
    request = EvaluationRequest(config=config, policy=KernelsSource(tmp_path), tasks=tasks, out=tmp_path)
    report = make_report(request, trajectories, tasks, {"level3/1_Gone": "no such operator\nmore"})
    assert report.degenerate == {"level2/9_Zero": "the output is exactly zero"}
    assert report.rows[-1].result.figures["pass_rate"].value == pytest.approx(1 / 3)
    assert report.without_degenerate is not None and report.without_degenerate.figures["pass_rate"].value == 0
    text = markdown(report)
    assert "| without 1 degenerate |" in text and "- level2/9_Zero: the output is exactly zero" in text
    assert "- level3/1_Gone: no such operator\n" in text and "Contamination: not known" in text
    assert "| level1: CUDA Agent | 100.0 % |" in text and "overall: CUDA Agent" not in text, "level 3 is not there"
    assert json.loads(json.dumps(report.to_json()))["degenerate"] == report.degenerate
    assert len(DEGENERATE) == 24 and all(problem.level in (1, 2) for problem in DEGENERATE)


def test_a_run_is_checked_against_the_tasks_that_it_was_trained_on(tmp_path: Path):
    (tmp_path / "train").mkdir()
    text = code("torch.tanh(x)") + "def get_init_inputs():\n    return []\n"
    (tmp_path / "train" / "tanh.py").write_text(text)
    config = load_config(Path("configs/demo.yaml"), [f"--tasks.train={tmp_path / 'train'}"])
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "config.yaml").write_text(dump_config(config))
    assert yaml.safe_load((tmp_path / "run" / "config.yaml").read_text())["tasks"]["train"] == str(tmp_path / "train")
    task = Task(task_id="level1/1_Tanh", code=text, source="kernelbench/level1")
    request = EvaluationRequest(
        config=load_config(Path("configs/demo.yaml")), policy=RunSource(tmp_path / "run"), tasks=[task], out=tmp_path
    )
    report = make_report(request, [sample(task, 0, judged(1.0))], [task], {})
    assert report.contamination.same == ["level1/1_Tanh"] and report.contamination.num_train == 1
    (tmp_path / "train" / "tanh.py").unlink()
    gone = make_report(request, [sample(task, 0, judged(1.0))], [task], {}).contamination
    assert gone.num_train is None and "the training tasks are gone" in gone.sentence(1)


def test_published_rows_stand_beside_the_levels_that_were_evaluated():
    assert published_table(["file"]) is None
    columns, rows = published_table(["kernelbench/level1", "kernelbench/level2", "kernelbench/level3", "overall"]) or (
        [],
        [],
    )
    assert len(rows) == 24 and all(len(row) == len(columns) for row in rows)
    assert rows[-1] == ["overall: CUDA Agent", "98.8 %", "98.4 %", "96.8 %", "2.60x", "2.11x"]


def test_baselines_have_the_names_and_the_levels_that_kernelbench_gives_them(tmp_path: Path):
    tasks = [kernelbench_task(1, "1_Timed_"), kernelbench_task(1, "2_Failed"), kernelbench_task(2, "3_Unknown")]
    trajectories = [sample(tasks[0], 0, judged(2.0, over_compile=3.0)), sample(tasks[1], 0, judged(None))]
    prepared = {"level1/1_Timed_": (9.0, 8.0), "level1/2_Failed": (5.0, 4.0)}
    eager, compiled = write_baselines(tmp_path, trajectories, number_problems(tasks), prepared=prepared)
    assert (eager.parent, eager.name) == (tmp_path / "timing", "baseline_time_torch.json")
    times = json.loads(eager.read_text())
    assert {name: entry["mean"] for name, entry in times["level1"].items()} == {"1_Timed_.py": 1.0, "2_Failed.py": 5.0}
    assert list(times) == ["level1"], "nothing is known of level 2"
    assert json.loads(compiled.read_text())["level1"]["1_Timed_.py"]["mean"] == pytest.approx(1.5)
    assert write_baselines(tmp_path, [], {"free": Problem(None, 1)}, prepared={"free": (1.0, 1.0)}) == []
