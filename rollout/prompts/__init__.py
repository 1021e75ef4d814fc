"""The opening of a dialogue: system and user text from one jinja2 template with the blocks `system` and `user`.

A template may use: `skill` (name, toolchain, guide, extension_module), `task`, `agentic`, `max_turns`, `tools`
(function schemas as JSON values), `protocol` (how calls are written) and `example(name, **arguments)` (a call as the
model has to write it), and the filter `json`. A name that does not exist is an error, not an empty string.
"""

from __future__ import annotations

import functools
import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import jinja2

from rollout.config import DialogueConfig
from rollout.parsers import Parser
from rollout.tools.schema import ToolSchema
from sandbox.types import Task

_HERE = Path(__file__).parent
BUILT_IN = ("compact", "cuda_brief", "full")


class SkillText(Protocol):
    """What a prompt needs of a skill."""

    @property
    def name(self) -> str: ...
    @property
    def toolchain(self) -> str: ...
    @property
    def extension_module(self) -> str: ...
    @property
    def guide(self) -> str: ...


@dataclass(frozen=True, slots=True)
class Prompt:
    system: str
    user: str


def render_prompt(
    task: Task, skill: SkillText, *, dialogue: DialogueConfig, tools: Sequence[ToolSchema], parser: Parser
) -> Prompt:
    """The opening of one dialogue. Raises ValueError that names the template and what is wrong with it."""
    path = template_path(dialogue.prompt)
    variables: dict[str, Any] = {
        "skill": skill,
        "task": task,
        "agentic": dialogue.kind == "agentic",
        "max_turns": dialogue.max_turns,
        "tools": [schema.to_json() for schema in tools],
        "protocol": parser.instructions(),
        "example": lambda name, **arguments: parser.render(name, arguments),
    }
    try:
        template = _environment(path.parent).get_template(path.name)
        context = template.new_context(variables)
        "".join(template.root_render_func(context))  # resolves `extends`: adds the parents' blocks to the context
        missing = {"system", "user"} - set(context.blocks)
        if missing:
            raise ValueError(f"the prompt template {path} lacks the block {sorted(missing)[0]!r}")
        texts = {name: "".join(context.blocks[name][0](context)) for name in ("system", "user")}
    except jinja2.TemplateError as error:
        raise ValueError(f"the prompt template {path} cannot be rendered: {error}") from error
    return Prompt(system=texts["system"].strip(), user=texts["user"].strip())


@functools.cache
def _environment(folder: Path) -> jinja2.Environment:
    """Kept, since it holds the compiled templates: compiling one takes far longer than rendering it."""
    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader([str(folder), str(_HERE)]),
        undefined=jinja2.StrictUndefined,
        autoescape=False,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters["json"] = lambda value: json.dumps(value, ensure_ascii=False)
    return environment


def template_path(prompt: str) -> Path:
    """The file that `dialogue.prompt` names."""
    path = _HERE / f"{prompt}.j2" if prompt in BUILT_IN else Path(prompt).expanduser().resolve()
    if not path.is_file():
        raise ValueError(f"dialogue.prompt={prompt!r} is none of {', '.join(BUILT_IN)}, and no template file")
    return path
