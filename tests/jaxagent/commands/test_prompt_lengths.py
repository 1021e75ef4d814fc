"""A task whose prompt does not fit is found before rollouts begin, by the measure that a dialogue itself uses."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from jaxagent.commands.prompt_lengths import fitting_tasks
from jaxagent.config.load import ConfigError, load_config
from jaxagent.models.scratch_tokenizer import save_tokenizer, train_tokenizer
from jaxagent.synthesis.sources import resolve_tasks
from rollout.chat import ChatFormat
from rollout.config import DialogueConfig
from rollout.openings import openings_too_long
from rollout.parsers import make_parser
from rollout.policy import TokenHistory
from rollout.prompts import render_prompt
from rollout.tools import agent_tools, answer_tools
from sandbox.backends.files_only import FilesSandbox
from sandbox.config import SandboxConfig
from sandbox.skill import load_skill
from sandbox.types import Task

TASKS = resolve_tasks("synthetic:train")[:3]
LONG = Task(task_id="a_long_one", code=TASKS[0].code + "".join(f"# line {i}: {i * i}\n" for i in range(400)))


@pytest.fixture(scope="module")
def model_dir(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("model")
    save_tokenizer(train_tokenizer([task.code for task in TASKS], vocab_size=400), folder)
    return folder


@pytest.mark.parametrize("kind", ["single_turn", "agentic"])
@pytest.mark.parametrize("prompt", ["compact", "full"])
def test_what_is_found_too_long_is_what_a_dialogue_refuses(model_dir, tmp_path, kind, prompt):
    chat, skill = ChatFormat.from_folder(model_dir), load_skill("cpp")
    dialogue = DialogueConfig(kind=kind, prompt=prompt)
    files, parser = FilesSandbox(tmp_path), make_parser(dialogue.parser)
    if kind == "single_turn":
        tools = answer_tools(files, max_chars=9)
    else:
        timeout_s = SandboxConfig().command_timeout_s
        tools = agent_tools(files, timeout_s=timeout_s, max_chars=9, full=prompt == "full")
    text = render_prompt(LONG, skill, dialogue=dialogue, tools=tools.schemas, parser=parser)
    opening = len(chat.start(text.system, text.user))

    def check(max_context: int) -> dict[str, int]:
        limits = dialogue.model_copy(update={"max_context_tokens": max_context})
        return openings_too_long([LONG], limits, skill=skill, chat=chat, sandbox_config=SandboxConfig())

    def open_dialogue(max_context: int) -> None:
        reply = dialogue.max_reply_tokens
        TokenHistory(chat, system=text.system, user=text.user, max_context=max_context, max_reply=reply)

    open_dialogue(opening + 16)
    assert check(opening + 16) == {}
    with pytest.raises(ValueError, match="leaves no room"):
        open_dialogue(opening + 15)
    assert check(opening + 15) == {LONG.task_id: opening}


def fitting(model_dir, train, heldout, *overrides: str) -> tuple[list[str], list[str]]:
    room = ["--stages.expert.dialogue.max_reply_tokens", "2048"]  # this tokenizer knows few words
    config = load_config(Path("configs/smoke.yaml"), [*room, *overrides])
    said: list[str] = []
    tasks = fitting_tasks(config, train, heldout, model_dir=model_dir, say=said.append)
    return [task.task_id for task in tasks], said


def test_a_train_task_that_does_not_fit_is_left_out_and_named_with_tokens_and_limit(model_dir):
    kept, said = fitting(model_dir, [TASKS[0], LONG, TASKS[1]], TASKS)
    assert kept == [TASKS[0].task_id, TASKS[1].task_id]
    (line,) = said
    assert "task a_long_one: its prompt has" in line and "dialogue.max_context_tokens=2048" in line
    assert "left out of training (1 of 3 tasks)" in line


def test_a_heldout_task_that_does_not_fit_is_refused(model_dir):
    with pytest.raises(ConfigError, match=r"a_long_one: .* tokens, .*evaluation\.dialogue.*\(1 of 4 held-out tasks\)"):
        fitting(model_dir, TASKS, [*TASKS, LONG])


def test_where_no_train_task_fits_the_run_does_not_start(model_dir):
    with pytest.raises(ConfigError, match="so it is with all 1 train tasks"):
        fitting(model_dir, [LONG], TASKS)


def test_an_expert_whose_answers_would_be_cut_is_refused_with_the_length_that_they_need(model_dir):
    limit = "--stages.expert.dialogue.max_reply_tokens"
    with pytest.raises(ConfigError, match=r"stages\.expert\.dialogue\.max_reply_tokens=200: .*tokens") as refusal:
        fitting(model_dir, TASKS, TASKS, limit, "200")
    needed = re.search(r"set it to (\d+) or more", str(refusal.value))
    assert needed is not None
    kept, said = fitting(model_dir, TASKS, TASKS, limit, needed[1])
    assert (len(kept), said) == (3, [])
