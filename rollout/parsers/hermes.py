"""Hermes and Qwen2.5/Qwen3 calls: <tool_call>{"name": ..., "arguments": {...}}</tool_call>."""

from __future__ import annotations

import json
import re
from typing import Any

from rollout.parsers.base import ToolSyntaxError, calls_in, decode_value, visible_text
from rollout.types import ToolCall

_OPEN, _CLOSE = "<tool_call>", "</tool_call>"
_OPENING = re.compile(_OPEN)

_INSTRUCTIONS = """\
Call a tool by writing, as the last thing of your reply, one JSON object between tags:
<tool_call>
{"name": "NAME", "arguments": {"KEY": "value"}}
</tool_call>
Several calls may follow each other; they run in order."""


class HermesParser:
    def parse(self, text: str) -> list[ToolCall]:
        return calls_in(visible_text(text), _OPENING.search, _parse_call)

    def render(self, name: str, arguments: dict[str, Any]) -> str:
        body = json.dumps({"name": name, "arguments": arguments}, ensure_ascii=False)
        return f"{_OPEN}\n{body}\n{_CLOSE}"

    def instructions(self) -> str:
        return _INSTRUCTIONS


def _parse_call(text: str, opening: re.Match[str]) -> tuple[ToolCall, int]:
    # The JSON is read from its start, so that a closing tag inside one of its strings does not end it.
    value, end = decode_value(text, opening.end(), "the tool call")
    rest = text[end:]
    if not rest.lstrip().startswith(_CLOSE):
        raise ToolSyntaxError(f"expected {_CLOSE} after the JSON object, found {rest.strip()[:40]!r}")
    name, arguments = value.get("name"), value.get("arguments")
    if not isinstance(name, str) or not name or not isinstance(arguments, dict) or len(value) != 2:
        raise ToolSyntaxError('the tool call must have exactly "name" (a string) and "arguments" (an object)')
    return ToolCall(name=name, arguments=arguments), text.index(_CLOSE, end) + len(_CLOSE)
