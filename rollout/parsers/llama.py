"""Llama 3's calls: {"name": ..., "parameters": {...}} at the start of a line, after <|python_tag|> or without it.

Several calls stand in lines of their own or are separated by `;`.
"""

from __future__ import annotations

import json
import re
from typing import Any

from rollout.parsers.base import ToolSyntaxError, calls_in, decode_value, visible_text
from rollout.types import ToolCall

_TAG = r"<\|python_tag\|>"
_OBJECT = r'[ \t]*(?=\{\s*"(?:name|type)"\s*:)'
_OPENING = re.compile(rf"{_TAG}\s*|^{_OBJECT}", re.MULTILINE)
_FOLLOWING = re.compile(rf"\s*;\s*(?:{_TAG}\s*)?(?=\{{)")

_INSTRUCTIONS = """\
Call a tool by ending your reply with one JSON object in a line of its own:
{"name": "NAME", "parameters": {"KEY": "value"}}
Several calls may follow each other, separated by `;`; they run in order."""


class LlamaParser:
    def parse(self, text: str) -> list[ToolCall]:
        return calls_in(visible_text(text), _next_call, _parse_call)

    def render(self, name: str, arguments: dict[str, Any]) -> str:
        return json.dumps({"name": name, "parameters": arguments}, ensure_ascii=False)

    def instructions(self) -> str:
        return _INSTRUCTIONS


def _next_call(text: str, position: int) -> re.Match[str] | None:
    following = _FOLLOWING.match(text, position) if position else None
    return following or _OPENING.search(text, position)


def _parse_call(text: str, opening: re.Match[str]) -> tuple[ToolCall, int]:
    value, end = decode_value(text, opening.end(), "the tool call")
    value.pop("type", None)  # some fine-tunes write "type": "function" as in the schema they were shown
    name, arguments = value.get("name"), value.get("parameters")
    if not isinstance(name, str) or not name or not isinstance(arguments, dict) or len(value) != 2:
        raise ToolSyntaxError('the tool call must have exactly "name" (a string) and "parameters" (an object)')
    return ToolCall(name=name, arguments=arguments), end
