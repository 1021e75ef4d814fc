"""Where two configurations differ, by the keys with which an override would say it."""

from __future__ import annotations

from typing import Any

from jaxagent.config.run import RunConfig

ABSENT = "(absent)"


def config_changes(old: RunConfig, new: RunConfig) -> dict[str, tuple[Any, Any]]:
    """`section.key` -> (old value, new value), stages by name; where a side has no such key, its value is ABSENT."""
    before, after = _flat(old.model_dump(mode="json")), _flat(new.model_dump(mode="json"))
    changed = {
        key: (before.get(key, ABSENT), after.get(key, ABSENT))
        for key in before | after
        if before.get(key, ABSENT) != after.get(key, ABSENT)
    }
    if [stage.name for stage in old.stages] != [stage.name for stage in new.stages]:
        changed["stages"] = [stage.name for stage in old.stages], [stage.name for stage in new.stages]
    return changed


def _flat(value: Any, key: str = "") -> dict[str, Any]:
    if isinstance(value, list) and value and all(isinstance(item, dict) and "name" in item for item in value):
        value = {item["name"]: item for item in value}
    if not isinstance(value, dict):
        return {key: value}
    return {k: v for name, part in value.items() for k, v in _flat(part, f"{key}.{name}" if key else name).items()}
