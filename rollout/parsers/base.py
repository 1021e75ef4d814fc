"""What every parser does: text in, tool calls out, broken syntax as a call with its error."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from typing import Any, Protocol

from rollout.types import ToolCall


class ToolSyntaxError(ValueError):
    """A tool call that breaks its convention; the message goes to the model."""


class Parser(Protocol):
    """A text convention for tool calls."""

    def parse(self, text: str) -> list[ToolCall]:
        """The calls in order. A call that cannot be read ends the list, with `error` set. Never raises."""
        ...

    def render(self, name: str, arguments: dict[str, Any]) -> str:
        """The text of a call: parse(render(...)) gives it back."""
        ...

    def instructions(self) -> str:
        """Tells a model how to write a call."""
        ...


def visible_text(text: str) -> str:
    """The reply without its thinking. A thought that never ends hides everything after it."""
    if "</think>" in text:
        head, _, rest = text.partition("</think>")
        opening = head.lstrip()
        # The chat template may have written the opening tag itself; then the reply starts inside the thought.
        if opening.startswith("<think>") or "<tool_call>" not in head:
            return rest
        return text
    return "" if text.lstrip().startswith("<think>") else text


def calls_in(
    text: str,
    next_opening: Callable[[str, int], re.Match[str] | None],
    parse_call: Callable[[str, re.Match[str]], tuple[ToolCall, int]],
) -> list[ToolCall]:
    """The calls in visible text, one after the other; the first that breaks its convention ends them.

    `next_opening` finds where the next call begins, from a position on; `parse_call` reads it and returns the position
    behind it, or raises ToolSyntaxError.
    """
    calls: list[ToolCall] = []
    position = 0
    while (opening := next_opening(text, position)) is not None:
        try:
            call, position = parse_call(text, opening)
        except ToolSyntaxError as error:
            return [*calls, malformed(str(error))]
        calls.append(call)
    return calls


def malformed(error: str, name: str = "") -> ToolCall:
    return ToolCall(name=name, arguments={}, error=error)


def decode_value(text: str, start: int, what: str) -> tuple[dict[str, Any], int]:
    """The JSON object that starts at `start` (white space skipped) and the index behind it. Raises ToolSyntaxError."""
    while start < len(text) and text[start].isspace():
        start += 1
    try:
        value, end = json.JSONDecoder().raw_decode(text, start)
    except (ValueError, RecursionError) as error:
        reason = error.msg if isinstance(error, json.JSONDecodeError) else str(error)
        raise ToolSyntaxError(f"{what} is not valid JSON: {reason}") from error
    if not isinstance(value, dict):
        raise ToolSyntaxError(f"{what} must be a JSON object")
    try:
        json.dumps(value, ensure_ascii=False).encode("utf-8")
    except UnicodeEncodeError as error:
        raise ToolSyntaxError(f"{what} holds half of a surrogate pair") from error
    return value, end
