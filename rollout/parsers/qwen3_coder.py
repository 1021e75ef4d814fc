"""Qwen3-Coder's calls: <tool_call><function=NAME><parameter=KEY>raw text</parameter></function></tool_call>.

Arguments are raw text, so code needs no escaping; a parameter ends at the first </parameter> that another parameter
or the end of the function follows.
"""

from __future__ import annotations

import json
import re
from typing import Any

from rollout.parsers.base import ToolSyntaxError, calls_in, visible_text
from rollout.types import ToolCall

_OPEN = re.compile(r"<tool_call>|<function=")
_FUNCTION = re.compile(r"\s*<function=([A-Za-z_][\w.-]*)>")
_PARAMETER = re.compile(r"\s*<parameter=([A-Za-z_][\w.-]*)>")
_PARAMETER_END = re.compile(r"</parameter>(?=\s*(?:<parameter=[A-Za-z_][\w.-]*>|</function>\s*</tool_call>))")
_CALL_END = re.compile(r"\s*</function>\s*</tool_call>")

_INSTRUCTIONS = """\
Call a tool by writing, as the last thing of your reply:
<tool_call>
<function=NAME>
<parameter=KEY>
value, as plain text
</parameter>
</function>
</tool_call>
Several calls may follow each other; they run in order."""


class Qwen3CoderParser:
    """Strict about tags, so that a slip comes back to the model instead of being guessed at."""

    def parse(self, text: str) -> list[ToolCall]:
        return calls_in(visible_text(text), _OPEN.search, _parse_call)

    def render(self, name: str, arguments: dict[str, Any]) -> str:
        parameters = "".join(
            f"<parameter={key}>\n{value if isinstance(value, str) else json.dumps(value)}\n</parameter>\n"
            for key, value in arguments.items()
        )
        return f"<tool_call>\n<function={name}>\n{parameters}</function>\n</tool_call>"

    def instructions(self) -> str:
        return _INSTRUCTIONS


def _parse_call(text: str, opening: re.Match[str]) -> tuple[ToolCall, int]:
    """The call that starts at `opening` and the index behind it."""
    if opening.group() != "<tool_call>":
        raise ToolSyntaxError("<function=...> stands outside of <tool_call>...</tool_call>")
    function = _FUNCTION.match(text, opening.end())
    if function is None:
        raise ToolSyntaxError("<tool_call> must be followed by <function=NAME>")
    name, position = function.group(1), function.end()
    arguments: dict[str, Any] = {}
    while parameter := _PARAMETER.match(text, position):
        key = parameter.group(1)
        end = _PARAMETER_END.search(text, parameter.end())
        if end is None:
            raise ToolSyntaxError(f"{name}: parameter {key!r} is not closed by </parameter>, </function>, </tool_call>")
        if key in arguments:
            raise ToolSyntaxError(f"{name}: the parameter {key!r} stands twice")
        arguments[key] = text[parameter.end() : end.start()].removeprefix("\n").removesuffix("\n")
        position = end.end()
    closing = _CALL_END.match(text, position)
    if closing is None:
        found = text[position : position + 40].strip()
        raise ToolSyntaxError(f"{name}: expected <parameter=...> or </function> </tool_call>, found {found!r}")
    return ToolCall(name=name, arguments=arguments), closing.end()
