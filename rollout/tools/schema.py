"""What a tool is called and takes, in the function schema of OpenHands and OpenAI; arguments are checked against it."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from rollout.types import ToolCall

_JSON_TYPES: dict[str, tuple[type, ...]] = {
    "string": (str,),
    "integer": (int,),
    "boolean": (bool,),
    "array": (list,),
}


@dataclass(frozen=True, slots=True)
class Parameter:
    """One argument of a tool. `items` is the JSON schema of an array's elements."""

    name: str
    type: str
    """string, integer, boolean or array."""
    description: str
    required: bool = True
    items: dict[str, Any] | None = None


@dataclass(frozen=True, slots=True)
class ToolSchema:
    name: str
    description: str
    parameters: tuple[Parameter, ...]

    def to_json(self) -> dict[str, Any]:
        """The form that chat APIs and prompts use: {"type": "function", "function": {...}}."""
        properties: dict[str, Any] = {}
        for parameter in self.parameters:
            properties[parameter.name] = {"type": parameter.type, "description": parameter.description}
            if parameter.items is not None:
                properties[parameter.name]["items"] = parameter.items
        required = [parameter.name for parameter in self.parameters if parameter.required]
        schema = {"type": "object", "properties": properties, "required": required}
        return {
            "type": "function",
            "function": {"name": self.name, "description": self.description, "parameters": schema},
        }


def check_call(call: ToolCall, schemas: Sequence[ToolSchema]) -> ToolCall:
    """The call with arguments of the declared types, or with `error` set to what the model has to change.

    Text protocols carry every argument as text, so a string is read as JSON where the schema wants another type.
    """
    if call.error is not None:
        return call
    schema = next((schema for schema in schemas if schema.name == call.name), None)
    if schema is None:
        known = ", ".join(schema.name for schema in schemas)
        return dataclasses.replace(call, error=f"unknown tool {call.name!r}; tools: {known}")
    known_names = [parameter.name for parameter in schema.parameters]
    for name in call.arguments:
        if name not in known_names:
            return dataclasses.replace(
                call, error=f"{call.name} has no parameter {name!r}; it takes: {', '.join(known_names)}"
            )
    arguments: dict[str, Any] = {}
    for parameter in schema.parameters:
        if parameter.name not in call.arguments:
            if parameter.required:
                return dataclasses.replace(call, error=f"{call.name} needs the parameter {parameter.name!r}")
            continue
        value, error = _coerce(call.arguments[parameter.name], parameter)
        if error:
            return dataclasses.replace(call, error=f"{call.name}: {error}")
        arguments[parameter.name] = value
    return dataclasses.replace(call, arguments=arguments)


def _coerce(value: Any, parameter: Parameter) -> tuple[Any, str | None]:
    expected = _JSON_TYPES[parameter.type]
    if isinstance(value, str) and parameter.type != "string":
        try:
            value = json.loads(value.strip().lower() if parameter.type == "boolean" else value)
        except ValueError:
            return None, f"{parameter.name} must be JSON of type {parameter.type}, got {_short(value)}"
    is_number_for_bool = isinstance(value, bool) and bool not in expected
    if not isinstance(value, expected) or is_number_for_bool:
        return None, f"{parameter.name} must be of type {parameter.type}, got {_short(value)}"
    if parameter.items is None or not isinstance(value, list):
        return value, None
    fields = parameter.items["required"]
    for position, item in enumerate(value):
        if not isinstance(item, dict) or set(item) != set(fields) or not all(isinstance(item[f], str) for f in fields):
            return None, f"{parameter.name}[{position}] must be an object of strings with the keys {', '.join(fields)}"
    return value, None


def _short(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 60 else text[:57] + "..."
