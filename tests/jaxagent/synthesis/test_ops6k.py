"""The released schema: loading, labels, duplicates, and a split that keeps neighbours together."""

from __future__ import annotations

from pathlib import Path

import pyarrow
import pyarrow.parquet
import pytest
from planted_tasks import task

from jaxagent.synthesis.ops6k import OpsRow, called_names, clean, export_ops6k, load_ops6k, split_by_family
from sandbox.tasks import TaskError, load_tasks

_LINEAR = task("return torch.tanh(self.fc(x))", init="self.fc = nn.Linear(1024, 512)")


def test_released_rows_load_clean_and_export_in_the_same_schema(tmp_path: Path):
    copy = "# again\n" + _LINEAR.replace("self.fc", "self.proj")
    columns = {
        "ops": ['["torch.nn.Linear", "torch.tanh"]', '["nn.Linear", "Tanh"]', '["nn.GELU"]', "BertLayer"],
        "data_source": ["torch#2", "torch#2", "torch#1", "transformers"],
        "code": [_LINEAR, copy, task("return F.silu(x)"), task("return x.sin()")],
    }
    pyarrow.parquet.write_table(pyarrow.table(columns), tmp_path / "released.parquet")
    rows = load_ops6k(tmp_path / "released.parquet")
    assert [row.ops for row in rows] == [
        ["torch.nn.Linear", "torch.tanh"],
        ["nn.Linear", "Tanh"],
        ["nn.GELU"],
        ["BertLayer"],
    ]
    cleaned = clean(rows)
    assert (cleaned.duplicates, cleaned.mislabelled) == ({1: 0}, {2: ["nn.GELU"], 3: ["BertLayer"]})
    assert [row.ops for row in cleaned.rows] == [
        ["torch.nn.Linear", "torch.tanh"],
        ["torch.nn.functional.silu"],
        ["BertLayer"],
    ]
    export_ops6k(cleaned.rows, tmp_path / "ours.parquet")
    table = pyarrow.parquet.read_table(tmp_path / "ours.parquet")
    assert table.column_names == ["ops", "data_source", "code", "metadata"]
    assert table["ops"].to_pylist()[2] == "BertLayer"
    assert load_ops6k(tmp_path / "ours.parquet") == cleaned.rows
    assert load_ops6k(tmp_path / "ours.parquet")[1].metadata == {"declared_ops": ["nn.GELU"]}


def test_operators_come_from_calls_not_from_words():
    code = task("# torch.nn.Conv2d, F.relu\nrelu = x.softmax(-1).view(4, -1)\nreturn F.gelu(relu)")
    assert called_names(code) == ["torch.Tensor.softmax", "torch.nn.functional.gelu"]


def test_rows_with_the_same_operators_are_in_one_split(tmp_path: Path):
    names = ["tanh", "sigmoid", "exp", "sin", "cos", "erf", "atan", "abs", "asinh", "square"]
    rows = [
        OpsRow([f"torch.{name}"], "torch#1", task(f"return torch.{name}(x)", inputs=f"[torch.randn({size}, 64)]"))
        for name in names
        for size in (128, 256, 4096)
    ]
    splits = split_by_family(rows, validation=0.2, seed=1)
    assert splits == split_by_family(rows, validation=0.2, seed=1) != split_by_family(rows, validation=0.2, seed=2)
    by_operator = {row.ops[0]: set() for row in rows}
    for row, split in zip(rows, splits, strict=True):
        by_operator[row.ops[0]].add(split)
        row.metadata["split"] = split
    assert all(len(found) == 1 for found in by_operator.values())
    assert 0 < splits.count("validation") <= 6
    export_ops6k(rows, tmp_path / "split.parquet")
    assert len(load_tasks(str(tmp_path / "split.parquet"), split="validation")) == splits.count("validation")


def test_another_schema_is_refused(tmp_path: Path):
    pyarrow.parquet.write_table(pyarrow.table({"code": ["x"]}), tmp_path / "other.parquet")
    with pytest.raises(TaskError, match="has no column ops, data_source"):
        load_ops6k(tmp_path / "other.parquet")
