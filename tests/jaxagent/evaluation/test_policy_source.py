"""What --policy and the folder of stored kernels may be, and what is said of everything else."""

from __future__ import annotations

from pathlib import Path

import pytest

from jaxagent.cli import main
from jaxagent.cli.exits import BAD_USAGE
from jaxagent.config.load import ConfigError
from jaxagent.evaluation.policy_source import (
    AdapterSource,
    KernelsSource,
    ModelSource,
    RunSource,
    ServerSource,
    parse_policy,
)
from jaxagent.evaluation.stored_kernels import find_kernels, with_missing
from sandbox.types import Outcome, Task


def folder_with(path: Path, *names: str) -> Path:
    for name in names:
        (path / name).parent.mkdir(parents=True, exist_ok=True)
        (path / name).write_text(f"# {name}")
    return path


def test_each_form_is_told_apart(tmp_path):
    run, model = folder_with(tmp_path / "run", "config.yaml"), folder_with(tmp_path / "model", "config.json")
    assert parse_policy(str(run)) == RunSource(run)
    assert parse_policy(str(model)) == ModelSource(model)
    assert parse_policy(f"kernels:{run}") == KernelsSource(run)
    (tmp_path / "adapter").mkdir()
    (tmp_path / "adapter" / "adapter_config.json").write_text('{"base_model_name_or_path": "model"}')
    assert parse_policy(str(tmp_path / "adapter")) == AdapterSource(tmp_path / "adapter", model)
    assert parse_policy("openai:http://h:8000/v1#org/name") == ServerSource("http://h:8000/v1", "org/name")


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("openai:localhost:8000", "write openai:BASE_URL#MODEL, for example"),
        ("openai:http://h/v1", "write openai:BASE_URL#MODEL"),
        ("{tmp}/adapter", "base_model_name_or_path='elsewhere/base' in adapter_config.json, is no model folder here"),
        ("{tmp}/empty", "neither a run .config.yaml. nor a model"),
        ("kernels:{tmp}/nowhere", "nowhere is no folder; give a run directory"),
        ("gpt-5", "is no folder; give a run directory, a Hugging Face model directory, a PEFT adapter, openai:"),
    ],
)
def test_what_cannot_be_evaluated_is_told_what_can(tmp_path, text, says):
    (tmp_path / "adapter").mkdir()
    (tmp_path / "adapter" / "adapter_config.json").write_text('{"base_model_name_or_path": "elsewhere/base"}')
    (tmp_path / "empty").mkdir()
    with pytest.raises(ConfigError, match=says):
        parse_policy(text.format(tmp=tmp_path))


@pytest.mark.parametrize(
    ("overrides", "says"),
    [
        (["--policy", "nothing"], "is no folder"),
        (["--policy", "{tmp}/model", "--engine.max_model_len", "300"], "is more than engine.max_model_len=300"),
        (["--policy", "{tmp}/model", "--tasks.skill", "cobol"], "skill='cobol' is not known"),
        (["--policy", "{tmp}/model", "--tasks", "/no/such/tasks"], "/no/such/tasks does not exist"),
    ],
)
def test_the_command_refuses_before_anything_is_started(tmp_path, capsys, overrides, says):
    folder_with(tmp_path / "model", "config.json")
    arguments = ["evaluate", "configs/demo.yaml", "--tasks", "synthetic:heldout", "--out", str(tmp_path / "out")]
    assert main([*arguments, *(text.format(tmp=tmp_path) for text in overrides)]) == BAD_USAGE
    shown = capsys.readouterr()
    assert says in shown.err and shown.out == "" and not (tmp_path / "out").exists()


TASKS = [Task(task_id=f"level1/{n}_x", code="", source="kernelbench/level1") for n in (1, 2, 3)]


def test_stored_kernels_are_found_in_every_way_they_may_be_stored(tmp_path):
    folder_with(
        tmp_path,
        "level_1_problem_2_sample_1_kernel.py",
        "level_1_problem_2_sample_0/model_new.py",
        "level_1_problem_2_sample_0/kernels/a.cpp",
        "level1/1_x/model_new.py",
        "level1/1_x/sample_4/model_new.py",
        "level_2_problem_1_sample_0_kernel.py",  # of another level
        "level_1_problem_2_sample_0_prompt.txt",
    )
    found = find_kernels(tmp_path, TASKS)
    assert [(kernel.task.task_id, kernel.sample_index) for kernel in found] == [
        ("level1/1_x", 0), ("level1/1_x", 4), ("level1/2_x", 0), ("level1/2_x", 1)
    ]  # fmt: skip
    assert found[2].candidate.files.keys() == {"model_new.py", "kernels/a.cpp"}
    assert found[3].candidate.files == {"model_new.py": "# level_1_problem_2_sample_1_kernel.py"}


def test_a_link_out_of_the_folder_is_not_followed(tmp_path):
    secret = folder_with(tmp_path / "elsewhere", "secret.py") / "secret.py"
    stored = folder_with(tmp_path / "stored", "level_1_problem_1_sample_0_kernel.py")
    (stored / "level_1_problem_2_sample_0_kernel.py").symlink_to(secret)
    linked = find_kernels(stored, TASKS)[1]
    assert linked.candidate.files == {} and "without following a link" in linked.candidate.omitted["model_new.py"]


def test_a_sample_that_is_stored_twice_and_a_folder_without_any_are_errors(tmp_path):
    with pytest.raises(ConfigError, match="no kernel of the 3 tasks is there; expected names are level_L_problem_P"):
        find_kernels(tmp_path, TASKS)
    folder_with(tmp_path, "level_1_problem_1_sample_0_kernel.py", "level1/1_x/model_new.py")
    with pytest.raises(ConfigError, match="sample 0 of task level1/1_x stands there twice"):
        find_kernels(tmp_path, TASKS)


def test_a_task_without_a_kernel_counts_as_failed():
    (one, *others) = with_missing([], TASKS)
    assert (one.task_id, one.judgement.outcome, one.judgement.reward) == ("level1/1_x", Outcome.REFUSED, -1.0)
    assert len(others) == 2 and len(with_missing([one], TASKS)) == 3
