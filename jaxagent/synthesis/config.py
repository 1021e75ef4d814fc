"""The file that `jaxagent synthesize` takes."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Literal

import yaml
from pydantic import Field, ValidationError

from jaxagent.synthesis.compose import ComposeConfig
from jaxagent.synthesis.llm_config import LLMConfig
from jaxagent.synthesis.reasons import FilterConfig
from sandbox.config import Config
from sandbox.taskcheck.config import ProbeConfig


class SynthesisError(ValueError):
    """A synthesis that cannot be started as asked; the message says what to change."""


class SynthesisConfig(Config):
    """Everything that decides which tasks come out, and where the work is done."""

    seed: int = Field(default=0, ge=0)
    num_tasks: int = Field(default=200, gt=0)
    """Tasks to keep."""
    max_candidates: int = Field(default=4000, gt=0)
    """Ends the search though fewer were kept."""
    block: int = Field(default=64, gt=0)
    """Candidates that go through the filters together: eager all, then torch.compile of what is left."""
    validation: float = Field(default=0.1, ge=0, lt=1)
    """Share of the tasks marked as split `validation`; tasks with the same operators stay on one side."""
    source: Literal["rules", "llm"] = "rules"
    """What composes: the rules, or a language model (section llm)."""
    executor: Literal["local", "ray"] = "local"
    """Where candidates run: on this machine, or on the devices of a Ray cluster."""
    compose: ComposeConfig = ComposeConfig()
    filters: FilterConfig = FilterConfig(min_ms=1.3, max_ms=80.0)
    """Narrower times than a later check allows, so that it drops nothing on another day."""
    probe: ProbeConfig = ProbeConfig()
    llm: LLMConfig | None = None


def load_synthesis_config(path: Path) -> SynthesisConfig:
    """Raises SynthesisError for a missing file, broken YAML, unknown keys and values out of range."""
    try:
        values = yaml.safe_load(path.read_text(encoding="utf-8")) or {}
    except (OSError, UnicodeDecodeError, yaml.YAMLError) as error:
        raise SynthesisError(f"{path} cannot be read as YAML: {error}") from error
    if not isinstance(values, dict):
        raise SynthesisError(f"{path}: expected keys and values, found a {type(values).__name__}")
    try:
        config = SynthesisConfig.model_validate(values)
    except ValidationError as error:
        lines = [_explain(entry) for entry in error.errors()]
        raise SynthesisError(f"{path}: {len(lines)} problem(s)\n  " + "\n  ".join(lines)) from None
    if config.source == "llm" and config.llm is None:
        raise SynthesisError(f"{path}: source is llm, but there is no section llm; give llm.base_url and llm.model")
    return config


def _explain(entry: Any) -> str:
    key = ".".join(str(part) for part in entry["loc"])
    if entry["type"] == "extra_forbidden":
        return f"{key}: unknown key; see configs/synthesis_cpu.yaml for those there are"
    return f"{key}: {entry['msg']} (found {entry['input']!r})"


def identity(config: SynthesisConfig) -> dict[str, Any]:
    """What may not change when a synthesis is continued: all that decides about single candidates."""
    values = config.model_dump(mode="json")
    for free in ("num_tasks", "max_candidates", "block", "validation", "executor"):
        values.pop(free)
    for free in ("num_devices", "num_compilers"):
        values["probe"].pop(free)
    return values
