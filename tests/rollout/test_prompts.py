from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import pytest

from rollout.config import DialogueConfig
from rollout.parsers import make_parser
from rollout.prompts import Prompt, render_prompt
from rollout.tools import agent_tools, answer_tools
from sandbox.backends.files_only import FilesSandbox
from sandbox.types import Task

CODE = """import torch


class Model(torch.nn.Module):
    def __init__(self, scale):
        super().__init__()
        self.scale = scale

    def forward(self, x):
        return torch.relu(x) * self.scale  # {{ not jinja }}


def get_inputs():
    return [torch.rand(64, 1 << 16)]


def get_init_inputs():
    return [0.5]
"""
TASK = Task(task_id="relu_scale", code=CODE)


@dataclass(frozen=True)
class SomeSkill:
    name: str = "cpp"
    toolchain: str = "cpp"
    extension_module: str = "cpp_kernels"
    guide: str = "# Rules\nKernels go to kernels/.\n"


def rendered(tmp_path: Path, parser: str = "qwen3_coder", **settings) -> Prompt:
    config = DialogueConfig(parser=parser, **settings)  # type: ignore[arg-type]
    files = FilesSandbox(tmp_path)
    is_answer = config.kind == "single_turn"
    tools = answer_tools(files, max_chars=9) if is_answer else agent_tools(files, timeout_s=1, max_chars=9)
    return render_prompt(TASK, SomeSkill(), dialogue=config, tools=tools.schemas, parser=make_parser(parser))


@pytest.mark.parametrize("kind", ["single_turn", "agentic"])
def test_the_compact_prompt_is_short_and_holds_the_code_verbatim(tmp_path: Path, kind: str) -> None:
    prompt = rendered(tmp_path, kind=kind)
    assert prompt.user == CODE.strip()
    assert len(prompt.system) < 200
    assert ("verification" in prompt.system) is (kind == "agentic")


def test_the_brief_prompt_for_cuda_says_how_a_kernel_is_called_and_only_agents_are_sent_to_check(
    tmp_path: Path,
) -> None:
    for kind in ("single_turn", "agentic"):
        prompt = rendered(tmp_path, "hermes", prompt="cuda_brief", kind=kind)
        assert prompt.user == CODE.strip()
        assert "cuda_kernels.run(x, y, n)" in prompt.system and make_parser("hermes").instructions() in prompt.system
        assert ("utils/verification.py" in prompt.system) is (kind == "agentic"), "the scripted expert goes by it"
        assert len(prompt.system) < 1800


@pytest.mark.parametrize("parser", ["qwen3_coder", "hermes", "react"])
def test_the_full_prompt_teaches_tools_protocol_and_guide(tmp_path: Path, parser: str) -> None:
    prompt = rendered(tmp_path, parser, prompt="full", max_turns=7)
    for needed in [
        "at most 7 replies",
        '"name": "multi_edit"',
        make_parser(parser).instructions(),
        "Kernels go to kernels/.",
    ]:
        assert needed in prompt.system
    assert CODE.strip() in prompt.user


def test_a_full_single_turn_prompt_shows_a_write_and_offers_no_shell(tmp_path: Path) -> None:
    prompt = rendered(tmp_path, prompt="full", kind="single_turn")
    assert make_parser("qwen3_coder").render("write", {"path": "model_new.py", "content": "..."}) in prompt.user
    assert '"name": "bash"' not in prompt.system and "verification.py" not in prompt.user


def test_a_template_of_ones_own_may_build_on_ours(tmp_path: Path) -> None:
    template = tmp_path / "mine.j2"
    template.write_text(
        '{% extends "full.j2" %}{% block user %}{{ task.task_id }}: {{ skill.extension_module }}{% endblock %}'
    )
    prompt = rendered(tmp_path, prompt=str(template))
    assert prompt.user == "relu_scale: cpp_kernels" and "# Guide" in prompt.system


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("{% block system %}{{ skil.name }}{% endblock %}{% block user %}{% endblock %}", "'skil' is undefined"),
        ("{% block system %}{% endblock %}", "lacks the block 'user'"),
        ("{% block system %}{% endbloc %}", "cannot be rendered"),
    ],
)
def test_a_broken_template_is_named_with_its_fault(tmp_path: Path, text: str, message: str) -> None:
    template = tmp_path / "broken.j2"
    template.write_text(text)
    with pytest.raises(ValueError, match=f"broken.j2.*{message}"):
        rendered(tmp_path, prompt=str(template))


def test_an_unknown_prompt_is_refused(tmp_path: Path) -> None:
    with pytest.raises(
        ValueError, match="dialogue.prompt='tiny' is none of compact, cuda_brief, full, and no template file"
    ):
        rendered(tmp_path, prompt="tiny")
