"""How long the openings of dialogues are, known before any dialogue begins."""

from __future__ import annotations

import tempfile
from collections.abc import Iterable
from pathlib import Path

from rollout.chat import ChatFormat
from rollout.config import DialogueConfig
from rollout.parsers import make_parser
from rollout.policy import least_reply
from rollout.prompts import render_prompt
from rollout.tools import ToolSchema, agent_tools, answer_tools
from sandbox.backends.files_only import FilesSandbox
from sandbox.config import SandboxConfig
from sandbox.skill import Skill
from sandbox.types import Task

_MARKUP_TOKENS = 64
"""More than a chat format adds to two messages."""


def openings_too_long(
    tasks: Iterable[Task], dialogue: DialogueConfig, *, skill: Skill, chat: ChatFormat, sandbox_config: SandboxConfig
) -> dict[str, int]:
    """task_id -> tokens of the opening, for tasks whose opening leaves no room for a reply in the dialogue's context.

    Such a task cannot be rolled out at all: TokenHistory refuses it. Raises ValueError for a broken template.
    """
    parser, schemas = make_parser(dialogue.parser), _tool_schemas(dialogue, sandbox_config)
    room = dialogue.max_context_tokens - least_reply(dialogue.max_reply_tokens)
    found: dict[str, int] = {}
    for task in tasks:
        prompt = render_prompt(task, skill, dialogue=dialogue, tools=schemas, parser=parser)
        # No tokenizer makes more tokens of a text than it has bytes, and most openings are far from the limit.
        if len((prompt.system + prompt.user).encode()) + _MARKUP_TOKENS <= room:
            continue
        num_tokens = len(chat.start(prompt.system, prompt.user))
        if num_tokens > room:
            found[task.task_id] = num_tokens
    return found


def _tool_schemas(dialogue: DialogueConfig, sandbox_config: SandboxConfig) -> list[ToolSchema]:
    """Of the tools that such a dialogue offers; nothing is run with them here, so no shell is opened."""
    with tempfile.TemporaryDirectory(prefix="jaxagent-openings-") as folder:
        files, max_chars = FilesSandbox(Path(folder)), dialogue.observation_chars
        if dialogue.kind == "single_turn":
            return answer_tools(files, max_chars=max_chars).schemas
        timeout_s = sandbox_config.command_timeout_s
        return agent_tools(files, timeout_s=timeout_s, max_chars=max_chars, full=dialogue.has_all_tools).schemas
