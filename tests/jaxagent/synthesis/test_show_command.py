"""`jaxagent tasks show`: ids with what their tasks do, and the text of one."""

from __future__ import annotations

import pytest

from jaxagent.cli import main
from jaxagent.synthesis.sources import resolve_tasks
from sandbox.tasks import load_tasks

TASK = """import torch
class Model(torch.nn.Module):
    {docstring}
    def forward(self, x):
        "Not what is shown."
        y = x * 2
        return (y
                .relu())
def get_inputs():
    return [torch.randn(4)]
def get_init_inputs():
    return []"""


def test_the_demos_tasks_are_listed_with_their_operators(capsys):
    assert main(["tasks", "show", "synthetic:heldout"]) == 0
    lines = capsys.readouterr().out.splitlines()
    tasks = resolve_tasks("synthetic:heldout")
    assert lines == [f"{task.task_id}\t{', '.join(task.ops)}" for task in tasks] and len(tasks) == 12


def test_what_is_shown_of_a_task_is_the_model_that_a_judge_reads(capsys, tmp_path):
    assert main(["tasks", "show", "synthetic:heldout", "synthetic_0_heldout_00"]) == 0
    model = tmp_path / "model.py"
    model.write_text(capsys.readouterr().out)
    [read] = load_tasks(str(model))
    assert read.code == resolve_tasks("synthetic:heldout")[0].code


def test_files_are_told_by_their_docstring_or_by_what_forward_does(capsys, tmp_path):
    (tmp_path / "1_told.py").write_text(TASK.format(docstring='"""Doubles.\n\n    More."""'))
    (tmp_path / "2_bare.py").write_text(TASK.format(docstring=""))
    (tmp_path / "3_long.py").write_text(TASK.format(docstring=f'"""{"word " * 40}"""'))
    assert main(["tasks", "show", str(tmp_path)]) == 0
    told, bare, long = capsys.readouterr().out.splitlines()
    assert told == "1_told\tDoubles." and bare == "2_bare\ty = x * 2; return y.relu()"
    assert long.endswith("…") and len(long.split("\t")[1]) == 100
    assert main(["tasks", "show", str(tmp_path), "2_bare"]) == 0
    assert capsys.readouterr().out == TASK.format(docstring="") + "\n"


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["synthetic:heldout", "synthetic_0_heldout_0"], "did you mean synthetic_0_heldout_"),
        (["synthetic:heldout", "7"], "has no task '7'; `jaxagent tasks show 'synthetic:heldout'` lists its 12"),
        (["synthetic:test"], "write synthetic:train or synthetic:heldout"),
        (["/no/such/folder"], "/no/such/folder does not exist"),
    ],
)
def test_what_is_not_there_is_said_in_one_paragraph(words, said, capsys):
    assert main(["tasks", "show", *words]) == 2
    error = capsys.readouterr().err
    assert said in error and error.startswith("jaxagent tasks: tasks: ") and error.count("\n") == 1


def test_evaluate_says_that_it_takes_the_demos_tasks(capsys):
    with pytest.raises(SystemExit):
        main(["evaluate", "--help"])
    assert "synthetic:heldout" in capsys.readouterr().out
