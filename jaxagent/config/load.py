"""YAML file + command-line overrides -> RunConfig, with errors that name the key and the nearest valid one."""

from __future__ import annotations

import difflib
from collections.abc import Sequence
from pathlib import Path
from typing import Any, get_args, get_origin

import yaml
from pydantic import BaseModel, ValidationError

from jaxagent.config.run import RunConfig


class ConfigError(ValueError):
    """The configuration cannot be used; the message says which key, why, and what would be allowed."""


def load_config(path: Path, overrides: Sequence[str] = ()) -> RunConfig:
    """Reads `path` and applies overrides: `--section.key value`, stages by name: `--stages.agentic.updates 2`.

    A file may begin with `extends: OTHER.yaml` (relative to itself) and then holds what differs. Its `stages` are then
    a mapping from the name of a stage to the keys that change, or to null where the stage is left out.
    Raises ConfigError for a missing file, broken YAML, unknown keys, values out of range, and cross-field conflicts.
    """
    return _overridden(_read_extended(path), overrides, where=str(path))


def override(config: RunConfig, overrides: Sequence[str], *, where: str) -> RunConfig:
    """A loaded config with overrides as of `load_config`; `where` names the source in errors. Raises ConfigError."""
    return _overridden(config.model_dump(mode="json"), overrides, where=where)


def validate(values: dict[str, Any], *, where: str) -> RunConfig:
    """Plain nested dict -> RunConfig; `where` names the source in errors."""
    try:
        return RunConfig.model_validate(values)
    except ValidationError as error:
        lines = [_explain(entry, values) for entry in error.errors()]
        raise ConfigError(f"{where}: {len(lines)} problem(s) in the configuration\n  " + "\n  ".join(lines)) from None


def dump_config(config: RunConfig) -> str:
    """The whole resolved config as YAML that load_config reads back."""
    return yaml.safe_dump(config.model_dump(mode="json"), sort_keys=False, width=110)


def _overridden(values: dict[str, Any], overrides: Sequence[str], *, where: str) -> RunConfig:
    for key, text in _pairs(overrides):
        _assign(values, key, _value(key, text))
    return validate(values, where=where)


def _read_extended(path: Path, seen: tuple[Path, ...] = ()) -> dict[str, Any]:
    values = _read_yaml(path)
    if "extends" not in values:
        return values
    base = path.parent / str(values.pop("extends"))
    if base.resolve() in seen:
        raise ConfigError(f"{path}: extends {base}, which extends it in turn; break the circle")
    merged = _read_extended(base, (*seen, path.resolve()))
    changes = values.pop("stages", {})
    if not isinstance(changes, dict):
        raise ConfigError(f"{path}: stages of a file with `extends` are a mapping: stage name -> changed keys, or null")
    for name, change in changes.items():
        stage = _element(merged.get("stages", []), name, f"stages.{name}")
        if change is None:
            merged["stages"].remove(stage)
        elif isinstance(change, dict):
            _merge(stage, change)
        else:
            raise ConfigError(f"{path}: stages.{name}: expected the keys that change, or null; found {change!r}")
    _merge(merged, values)
    return merged


def _merge(values: dict[str, Any], changes: dict[str, Any]) -> None:
    """Sections are merged key by key; everything else, lists among it, is replaced."""
    for key, change in changes.items():
        if isinstance(change, dict) and isinstance(values.get(key), dict):
            _merge(values[key], change)
        else:
            values[key] = change


def _read_yaml(path: Path) -> dict[str, Any]:
    if not path.is_file():
        folder = path.parent if path.parent.is_dir() else Path("configs")
        known = sorted(str(file) for file in folder.glob("*.yaml"))
        raise ConfigError(f"{path}: no such config file; in {folder}/ there are: {', '.join(known) or 'none'}")
    try:
        values = yaml.safe_load(path.read_text())
    except yaml.YAMLError as error:
        raise ConfigError(f"{path}: not valid YAML: {error}") from None
    if not isinstance(values, dict):
        raise ConfigError(f"{path}: expected sections of keys at the top level, found {type(values).__name__}")
    return _unshared(values)


def _unshared(value: Any) -> Any:
    """A copy in which an anchor's aliases are apart: a key that is changed in one place stays as it is in another."""
    if isinstance(value, dict):
        return {key: _unshared(inner) for key, inner in value.items()}
    return [_unshared(inner) for inner in value] if isinstance(value, list) else value


def _pairs(overrides: Sequence[str]) -> list[tuple[str, str]]:
    """`--a.b 1 --c.d=2` -> [("a.b", "1"), ("c.d", "2")]."""
    pairs, rest = [], list(overrides)
    while rest:
        flag = rest.pop(0)
        if not flag.startswith("--"):
            raise ConfigError(f"{flag!r}: expected an override of the form --section.key value")
        key, equals, value = flag[2:].partition("=")
        if not equals:
            if not rest:
                raise ConfigError(f"--{key}: a value is missing; write --{key} VALUE")
            value = rest.pop(0)
        pairs.append((key, value))
    return pairs


def _value(key: str, text: str) -> Any:
    try:
        return yaml.safe_load(text)
    except yaml.YAMLError:
        raise ConfigError(f"--{key}: {text!r} is not a YAML value; quote it, or close its brackets") from None


def _assign(values: dict[str, Any], key: str, value: Any) -> None:
    """Sets values[a][b][c] for the key `a.b.c`; an element of a list is chosen by its `name` or its index."""
    *parents, last = key.split(".")
    here: Any = values
    for part in parents:
        if not isinstance(here, dict | list):
            raise ConfigError(f"--{key}: {part} cannot be set, its parent is the single value {here!r}")
        here = _element(here, part, key) if isinstance(here, list) else here.setdefault(part, {})
    if isinstance(here, list) or not isinstance(here, dict):
        raise ConfigError(f"--{key}: {'.'.join(parents)} is no section of keys")
    here[last] = value


def _element(items: list[Any], part: str, key: str) -> Any:
    names = [item.get("name") if isinstance(item, dict) else None for item in items]
    if part in names:
        return items[names.index(part)]
    if part.isdigit() and int(part) < len(items):
        return items[int(part)]
    raise ConfigError(f"{key}: {part!r} is none of {names}")


def _explain(entry: Any, values: dict[str, Any]) -> str:
    """One pydantic error -> one line: key, value, what was allowed."""
    location = _without_union_tags(entry["loc"])
    key = ".".join(_name_of(values, location, depth) for depth in range(len(location)))
    if entry["type"] == "extra_forbidden":
        valid = _valid_keys(RunConfig, location[:-1])
        near = difflib.get_close_matches(str(location[-1]), valid, n=1, cutoff=0.5)
        parent = f"{key.rpartition('.')[0]}." if "." in key else ""
        hint = f"did you mean {parent}{near[0]}?" if near else f"valid keys here: {', '.join(valid)}"
        return f"{key}: unknown key; {hint}"
    if entry["type"] == "missing":
        return f"{key}: this key is required and is not set"
    shown = "" if isinstance(entry["input"], dict | list) else f" (value: {entry['input']!r})"
    message = entry["msg"].removeprefix("Value error, ")
    return f"{key}: {message}{shown}" if key else message


def _without_union_tags(location: Sequence[Any]) -> list[Any]:
    """pydantic puts the chosen member of a discriminated union (a stage, the model) into an error's location."""
    tag_at = {("stages",): 2, ("model",): 1}.get(tuple(location[:1]))
    return [part for position, part in enumerate(location) if position != tag_at]


def _name_of(values: Any, location: list[Any], depth: int) -> str:
    """The location's part at `depth`, stages by name instead of index."""
    part = location[depth]
    if not isinstance(part, int):
        return str(part)
    for step in location[: depth + 1]:
        values = values[step] if isinstance(values, list) else values.get(step, {})
    return str(values.get("name", part)) if isinstance(values, dict) else str(part)


def _valid_keys(model: Any, location: list[Any]) -> list[str]:
    """Keys that the settings class at `location` knows; of a union, those of all its members."""
    models = [model]
    for part in location:
        if isinstance(part, int):
            continue
        found = [m.model_fields[part].annotation for m in models if part in m.model_fields]
        models = [leaf for annotation in found for leaf in _settings_classes(annotation)]
    return sorted({name for m in models for name in m.model_fields})


def _settings_classes(annotation: Any) -> list[type[BaseModel]]:
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return [annotation]
    if get_origin(annotation) is None:
        return []
    return [leaf for argument in get_args(annotation) for leaf in _settings_classes(argument)]
