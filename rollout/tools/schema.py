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
    """One argument of a tool. `items` is the JSON schema of an array's elements: objects of strings and booleans."""

    name: str
    type: str
    """string, integer, boolean or array."""
    description: str
    required: bool = True
    items: dict[str, Any] | None = None
    enum: tuple[str, ...] = ()
    """The values that a string may have; empty: any."""


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
            if parameter.enum:
                properties[parameter.name]["enum"] = list(parameter.enum)
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
                call, error=f"{call.name} has no parameter {name!r}; it takes: {', '.join(known_names) or 'none'}"
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
    if parameter.enum and value not in parameter.enum:
        return None, f"{parameter.name} must be one of {', '.join(parameter.enum)}, got {_short(value)}"
    if parameter.items is None or not isinstance(value, list):
        return value, None
    for position, item in enumerate(value):
        if error := _item_error(item, parameter.items):
            return None, f"{parameter.name}[{position}] {error}"
    return value, None


def _item_error(item: Any, schema: dict[str, Any]) -> str | None:
    """What is wrong with an element of an array, as the end of a sentence."""
    properties, required = schema["properties"], schema["required"]
    if not isinstance(item, dict) or not set(required) <= set(item) <= set(properties):
        optional = [name for name in properties if name not in required]
        may = f" (and may have {', '.join(optional)})" if optional else ""
        return f"must be an object with the keys {', '.join(required)}{may}"
    for name, value in item.items():
        kind, allowed = properties[name]["type"], properties[name].get("enum")
        if not isinstance(value, _JSON_TYPES[kind]):
            return f"needs a {kind} as {name}, got {_short(value)}"
        if allowed is not None and value not in allowed:
            return f"needs one of {', '.join(allowed)} as {name}, got {_short(value)}"
    return None


def _short(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 60 else text[:57] + "..."
