"""The reference of all configuration keys, made from the config classes: `python -m jaxagent.config.reference`.

docs/config.md is what it prints; a test compares them.
"""

from __future__ import annotations

import ast
import inspect
import json
import textwrap
import types
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any, Literal, Union, get_args, get_origin

from pydantic import BaseModel
from pydantic.fields import FieldInfo
from pydantic_core import PydanticUndefined

from jaxagent.config.run import RunConfig

_INTRODUCTION = """# Configuration

Made from the config classes by `python -m jaxagent.config.reference`; do not edit it by hand.

A config is a YAML file that holds what differs from these defaults. Any key can be overridden on the command line with
`--section.key value`, stages by their name: `--stages.agentic.updates 16`. Unknown keys, wrong types and values out of
range are refused before anything starts, with the key, its value, what is allowed and the nearest valid key. A file may
begin with `extends: OTHER.yaml`; its `stages` are then a mapping from the name of a stage to the keys that change.
"""


def render_reference() -> str:
    parts = [_INTRODUCTION]
    first: dict[type[BaseModel], str] = {}
    for path, cls in _sections(RunConfig, ""):
        content = f"As `{first[cls]}`.\n" if cls in first else f"{_prose(cls.__doc__ or '')}\n\n{_table(cls)}"
        parts.append(f"## {path or 'Top level'}\n\n{content}")
        first.setdefault(cls, path)
    return "\n".join(parts)


def _sections(cls: type[BaseModel], path: str) -> Iterator[tuple[str, type[BaseModel]]]:
    """Every section with its path, depth first; a section that may be of several kinds, once a kind."""
    yield path, cls
    for name, field in cls.model_fields.items():
        classes = _classes(field.annotation)
        for inner in classes:
            key = f"{path}.{name}" if path else name
            is_list = _is_list(field.annotation)
            kind = _kind(inner) if len(classes) > 1 or is_list else None
            label = key + (".NAME" if is_list else "") + (f" (kind: {kind})" if kind else "")
            yield from _sections(inner, label)


def _classes(annotation: Any) -> list[type[BaseModel]]:
    """The config classes in an annotation such as `X`, `X | None`, `list[Annotated[X | Y, …]]`."""
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return [annotation]
    arguments = get_args(annotation)
    if get_origin(annotation) is Annotated:
        arguments = arguments[:1]
    return [cls for argument in arguments for cls in _classes(argument)]


def _is_list(annotation: Any) -> bool:
    return get_origin(annotation) is list


def _kind(cls: type[BaseModel]) -> str | None:
    field = cls.model_fields.get("kind")
    return field.default if field is not None else None


def _table(cls: type[BaseModel]) -> str:
    docs = _field_docs(cls)
    lines = ["| key | type | default | |", "| --- | --- | --- | --- |"]
    for name, field in cls.model_fields.items():
        cells = [f"`{name}`", _type(field), _default(field), docs.get(name, "")]
        lines.append("| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |")
    return "\n".join(lines) + "\n"


def _default(field: FieldInfo) -> str:
    if field.is_required():
        return "required"
    value = field.get_default(call_default_factory=True)
    if value is PydanticUndefined or value is None:
        return "null"
    if isinstance(value, BaseModel):
        return "its own"
    return f"`{value if isinstance(value, Path) else json.dumps(value)}`"


def _type(field: FieldInfo) -> str:
    text = _name(field.annotation)
    limits = []
    for rule in field.metadata:
        for attribute, sign in (("gt", ">"), ("ge", ">="), ("lt", "<"), ("le", "<=")):
            if (bound := getattr(rule, attribute, None)) is not None:
                limits.append(f"{sign} {bound:g}")
        if (pattern := getattr(rule, "pattern", None)) is not None:
            limits.append(f"matches `{pattern}`")
    return f"{text}, {', '.join(limits)}" if limits else text


def _name(annotation: Any) -> str:
    origin, arguments = get_origin(annotation), get_args(annotation)
    if origin is Literal:
        return ", ".join(f"`{value}`" for value in arguments)
    if origin is Annotated:
        return _name(arguments[0])
    if origin in (Union, types.UnionType):
        if all(_classes(part) for part in arguments):
            return "section"
        return " or ".join("null" if part is type(None) else _name(part) for part in arguments)
    if origin is list:
        return f"list of {_name(arguments[0])}"
    if _classes(annotation):
        return "section"
    return {Path: "path", str: "text", int: "integer", float: "number", bool: "true or false"}.get(
        annotation, str(annotation)
    )


def _field_docs(cls: type[BaseModel]) -> dict[str, str]:
    """The text under each field, as this project writes them; those of base classes too."""
    docs: dict[str, str] = {}
    for base in reversed(cls.__mro__):
        if not (isinstance(base, type) and issubclass(base, BaseModel)) or base is BaseModel:
            continue
        body = ast.parse(textwrap.dedent(inspect.getsource(base))).body[0]
        assert isinstance(body, ast.ClassDef)
        for field, text in zip(body.body, body.body[1:], strict=False):
            is_text = isinstance(text, ast.Expr) and isinstance(text.value, ast.Constant)
            if isinstance(field, ast.AnnAssign) and isinstance(field.target, ast.Name) and is_text:
                docs[field.target.id] = _prose(str(text.value.value))  # type: ignore[union-attr]
    return docs


def _prose(text: str) -> str:
    return " ".join(text.split())


if __name__ == "__main__":
    print(render_reference(), end="")
