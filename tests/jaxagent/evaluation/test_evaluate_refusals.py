"""`jaxagent evaluate` refuses what cannot work before anything is started, and says what to change."""

from __future__ import annotations

import socket
from pathlib import Path

import pytest
from openai_server import OpenAIServer, serve
from planted_tasks import task

from jaxagent.cli import main
from jaxagent.cli.exits import BAD_USAGE

TASK = task("return x * 2", inputs="[torch.randn(4)]")


@pytest.fixture
def tasks(tmp_path: Path) -> Path:
    folder = tmp_path / "checkout" / "KernelBench" / "level1"
    folder.mkdir(parents=True)
    (folder / "1_Double.py").write_text(TASK)
    (tmp_path / "checkout" / "scripts").mkdir()
    (tmp_path / "checkout" / "scripts" / "analysis.py").write_text("import os\n")
    return tmp_path / "checkout"


def refused(capsys: pytest.CaptureFixture, *, policy: str, tasks: Path, out: Path) -> str:
    arguments = ["evaluate", "configs/demo.yaml", "--policy", policy, "--tasks", str(tasks), "--out", str(out)]
    assert main(arguments) == BAD_USAGE
    return capsys.readouterr().err


def test_an_endpoint_where_nobody_answers(tasks: Path, tmp_path: Path, capsys: pytest.CaptureFixture):
    with socket.create_server(("127.0.0.1", 0)) as closed:
        port = closed.getsockname()[1]
    policy = f"openai:http://127.0.0.1:{port}/v1#some"
    message = refused(capsys, policy=policy, tasks=tasks / "KernelBench", out=tmp_path / "out")
    assert f"--policy {policy}" in message and "is the server running at that address?" in message
    assert not (tmp_path / "out").exists()


def test_a_key_that_is_missing_and_a_model_that_is_not_served(
    tasks: Path, tmp_path: Path, capsys: pytest.CaptureFixture, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.delenv("OPENAI_API_KEY", raising=False)
    with serve(OpenAIServer(str, key="secret")) as url:
        message = refused(capsys, policy=f"openai:{url}#scripted", tasks=tasks / "KernelBench", out=tmp_path / "out")
        assert "the environment variable OPENAI_API_KEY is not set" in message
    with serve(OpenAIServer(str)) as url:
        message = refused(capsys, policy=f"openai:{url}#big", tasks=tasks / "KernelBench", out=tmp_path / "out")
        assert "no model 'big' there; it serves scripted" in message


def test_a_checkout_in_place_of_its_tasks_and_one_without_levels(
    tasks: Path, tmp_path: Path, capsys: pytest.CaptureFixture
):
    (tmp_path / "kernels").mkdir()
    policy = f"kernels:{tmp_path / 'kernels'}"
    message = refused(capsys, policy=policy, tasks=tasks, out=tmp_path / "out")
    assert f"name its tasks, {tasks / 'KernelBench'} for all levels (level1)" in message
    (tasks / "KernelBench" / "level1" / "1_Double.py").unlink()
    (tasks / "KernelBench" / "level1").rmdir()
    assert "holds no level1, level2" in refused(capsys, policy=policy, tasks=tasks, out=tmp_path / "out")
    assert str(tasks / "KernelBench") in refused(
        capsys, policy=policy, tasks=tasks / "KernelBench", out=tmp_path / "out"
    )


@pytest.mark.ray
def test_a_folder_of_something_else(tasks: Path, tmp_path: Path, capsys: pytest.CaptureFixture):
    (tmp_path / "kernels").mkdir()
    (tmp_path / "kernels" / "level_1_problem_1_sample_0_kernel.py").write_text("class ModelNew: pass\n")
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "config.yaml").write_text("name: somebody's\n")
    policy = f"kernels:{tmp_path / 'kernels'}"
    message = refused(capsys, policy=policy, tasks=tasks / "KernelBench", out=tmp_path / "run")
    assert "the folder holds something that is no evaluation; choose a new one" in message
    assert [path.name for path in (tmp_path / "run").iterdir()] == ["config.yaml"]
