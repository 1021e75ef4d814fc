"""Plain ReAct: `Action: NAME`, then `Action Input: {JSON}`; anything from `Observation:` on is the model's fancy."""

from __future__ import annotations

import json
import re
from typing import Any

from rollout.parsers.base import ToolSyntaxError, calls_in, decode_value, malformed, visible_text
from rollout.types import ToolCall

_ACTION = re.compile(r"^[ \t]*Action:[ \t]*(.*)$", re.MULTILINE)
_INPUT = re.compile(r"\s*Action Input:[ \t]*")
_STRAY_INPUT = re.compile(r"^[ \t]*Action Input:", re.MULTILINE)
_OBSERVATION = re.compile(r"^[ \t]*Observation:", re.MULTILINE)
_NAME = re.compile(r"[A-Za-z_][\w.-]*")

_INSTRUCTIONS = """\
Call a tool by ending your reply with these two lines:
Action: NAME
Action Input: {"KEY": "value"}
Action Input is one JSON object. The result comes back to you; do not write it yourself."""


class ReactParser:
    def parse(self, text: str) -> list[ToolCall]:
        text = visible_text(text)
        calls = calls_in(text, _next_action, _parse_call)
        if not calls and _STRAY_INPUT.search(text):
            return [malformed("Action Input: without a line Action: NAME before it")]
        return calls

    def render(self, name: str, arguments: dict[str, Any]) -> str:
        return f"Action: {name}\nAction Input: {json.dumps(arguments, ensure_ascii=False)}"

    def instructions(self) -> str:
        return _INSTRUCTIONS


def _next_action(text: str, position: int) -> re.Match[str] | None:
    """The next Action line, unless an Observation line comes first."""
    action = _ACTION.search(text, position)
    observation = _OBSERVATION.search(text, position)
    if action is None or (observation is not None and observation.start() < action.start()):
        return None
    return action


def _parse_call(text: str, action: re.Match[str]) -> tuple[ToolCall, int]:
    name = action.group(1).strip()
    if not _NAME.fullmatch(name):
        raise ToolSyntaxError(f"Action: must name one tool, got {name[:40]!r}")
    start = _INPUT.match(text, action.end())
    if start is None:
        raise ToolSyntaxError(f"Action: {name} must be followed by a line Action Input: with a JSON object")
    arguments, end = decode_value(text, start.end(), "Action Input")
    rest = text[end:].split("\n", 1)[0].strip()
    if rest:
        raise ToolSyntaxError(f"Action Input: unexpected text after the JSON object: {rest[:40]!r}")
    return ToolCall(name=name, arguments=arguments), end
