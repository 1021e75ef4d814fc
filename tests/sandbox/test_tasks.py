from __future__ import annotations

import json
from pathlib import Path

import pyarrow
import pyarrow.parquet
import pytest

from sandbox.tasks import TaskError, check_task, load_tasks

CODE = """
import torch
import torch.nn as nn

class Model(nn.Module):
    def forward(self, x):
        return torch.relu(x)

def get_inputs():
    return [torch.randn(4)]

def get_init_inputs():
    return []
"""


def write(path: Path, text: str = CODE) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    return path


def test_a_file_is_one_task(tmp_path):
    path = write(tmp_path / "relu.py")
    (task,) = load_tasks(str(path), split="heldout")
    assert (task.task_id, task.code, task.split) == ("relu", CODE, "heldout")


def test_a_kernelbench_folder_keeps_levels_and_the_order_of_problem_numbers(tmp_path):
    for name in ("level1/10_Ten.py", "level1/2_Two_.py", "level2/1_One.py"):
        write(tmp_path / name)
    tasks = load_tasks(str(tmp_path))
    assert [task.task_id for task in tasks] == ["level1/2_Two_", "level1/10_Ten", "level2/1_One"]
    assert [task.source for task in tasks] == ["kernelbench/level1", "kernelbench/level1", "kernelbench/level2"]


def test_one_level_alone_has_the_same_task_ids(tmp_path):
    write(tmp_path / "level1/2_Two_.py")
    (task,) = load_tasks(str(tmp_path / "level1"))
    assert (task.task_id, task.source) == ("level1/2_Two_", "kernelbench/level1")


def test_a_folder_of_submissions_reads_only_the_references(tmp_path):
    write(tmp_path / "a/model.py")
    write(tmp_path / "a/model_new.py", "no task")
    write(tmp_path / "b/model.py")
    assert [task.task_id for task in load_tasks(str(tmp_path))] == ["a", "b"]


def test_a_flat_folder_without_numbers_is_sorted_by_name(tmp_path):
    for name in ("softmax.py", "gelu.py"):
        write(tmp_path / name)
    assert [task.task_id for task in load_tasks(str(tmp_path))] == ["gelu", "softmax"]


@pytest.mark.parametrize(
    ("removed", "named"),
    [("class Model", "class Model"), ("def get_inputs", "get_inputs()"), ("def get_init_inputs", "get_init_inputs()")],
)
def test_what_a_task_lacks_is_named_with_its_file(tmp_path, removed, named):
    path = write(tmp_path / "bad.py", CODE.replace(removed, removed + "_gone"))
    with pytest.raises(TaskError, match="bad.py") as caught:
        load_tasks(str(path))
    assert named in str(caught.value)


def test_text_that_is_no_python_is_named():
    assert "is not Python" in (check_task("class Model(:") or "")
    assert check_task(CODE) is None


def ops_6k(path: Path, **columns) -> str:
    rows = {
        "ops": [json.dumps(["nn.Linear", "nn.ReLU"]), "BertLayer"],
        "data_source": ["torch#2", "transformers"],
        "code": [CODE, CODE],
    } | columns
    pyarrow.parquet.write_table(pyarrow.table(rows), path)
    return str(path)


def test_a_parquet_in_the_ops_6k_schema_keeps_ops_and_source(tmp_path):
    first, second = load_tasks(ops_6k(tmp_path / "ops.parquet"))
    assert (first.ops, first.source) == (["nn.Linear", "nn.ReLU"], "torch#2")
    assert (second.ops, second.source) == (["BertLayer"], "transformers")
    assert first.task_id != second.task_id


def test_a_parquet_with_a_split_column_is_filtered_by_it(tmp_path):
    source = ops_6k(tmp_path / "ops.parquet", split=["train", "heldout"])
    assert [task.source for task in load_tasks(source, split="heldout")] == ["transformers"]
    assert [task.split for task in load_tasks(source)] == ["train", "heldout"]
    with pytest.raises(TaskError, match="no row of split 'other'"):
        load_tasks(source, split="other")


def test_a_parquet_without_code_names_the_column(tmp_path):
    path = tmp_path / "ops.parquet"
    pyarrow.parquet.write_table(pyarrow.table({"ops": ["[]"], "data_source": ["torch#1"]}), path)
    with pytest.raises(TaskError, match="no column code"):
        load_tasks(str(path))


def test_a_bad_row_is_named_by_its_number(tmp_path):
    with pytest.raises(TaskError, match="row 1"):
        load_tasks(ops_6k(tmp_path / "ops.parquet", code=[CODE, "x = 1"]))


@pytest.mark.parametrize("name", ["nothing.py", "list.txt", "empty"])
def test_sources_that_are_no_tasks_say_what_is_allowed(tmp_path, name):
    (tmp_path / "list.txt").write_text("")
    (tmp_path / "empty").mkdir()
    with pytest.raises(TaskError, match="tasks: "):
        load_tasks(str(tmp_path / name))
