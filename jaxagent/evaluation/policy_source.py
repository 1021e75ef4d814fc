"""What `--policy` names: a run, a model folder, an adapter, a server, or kernels that are stored already."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

from jaxagent.config.load import ConfigError

FORMS = (
    "a run directory, a Hugging Face model directory, a PEFT adapter, openai:BASE_URL#MODEL "
    "(openai:http://localhost:8000/v1#qwen), "
    "or kernels:DIR"
)


@dataclass(frozen=True, slots=True)
class FolderSource:
    """What lies in a folder; `says` goes before its path where a person reads it."""

    says: ClassVar[str]
    path: Path

    def __str__(self) -> str:
        return f"{self.says}{self.path}"


@dataclass(frozen=True, slots=True)
class RunSource(FolderSource):
    """The actor of a run's newest checkpoint."""

    says: ClassVar[str] = "run "


@dataclass(frozen=True, slots=True)
class ModelSource(FolderSource):
    """A Hugging Face folder, served by our own engines."""

    says: ClassVar[str] = "model "


@dataclass(frozen=True, slots=True)
class AdapterSource(FolderSource):
    """LoRA adapters in PEFT's format, merged into their base model before it is served."""

    says: ClassVar[str] = "adapter "
    base: Path
    """Hugging Face folder."""


@dataclass(frozen=True, slots=True)
class ServerSource:
    """A model behind an OpenAI-compatible server; the key is in the environment variable OPENAI_API_KEY."""

    base_url: str
    model: str

    def __str__(self) -> str:
        return f"openai:{self.base_url}#{self.model}"


@dataclass(frozen=True, slots=True)
class KernelsSource(FolderSource):
    """Kernels in files: nothing is generated."""

    says: ClassVar[str] = "kernels:"


PolicySource = RunSource | ModelSource | AdapterSource | ServerSource | KernelsSource


def parse_policy(text: str) -> PolicySource:
    """Raises ConfigError with the forms that are understood."""
    kind, colon, rest = text.partition(":")
    if colon and kind == "openai":
        return _server(text, rest)
    if colon and kind == "kernels":
        return KernelsSource(_folder(rest, f"--policy {text}"))
    path = _folder(text, f"--policy {text}")
    if (path / "adapter_config.json").is_file():
        return AdapterSource(path, _base_of(path, f"--policy {text}"))
    if (path / "config.json").is_file():
        return ModelSource(path)
    if (path / "config.yaml").is_file():
        return RunSource(path)
    raise ConfigError(
        f"--policy {text}: neither a run (config.yaml) nor a model (config.json) is in that folder; give {FORMS}"
    )


def _base_of(adapter: Path, key: str) -> Path:
    """The folder of the model that the adapters belong to: as they name it, from here or from beside them."""
    named = json.loads((adapter / "adapter_config.json").read_text()).get("base_model_name_or_path") or ""
    for base in (Path(named).expanduser(), adapter.parent / named, adapter / named):
        if named and (base / "config.json").is_file():
            return base.resolve()
    raise ConfigError(
        f"{key}: its base model, base_model_name_or_path={named!r} in adapter_config.json, is no model folder here; "
        "write the folder's path there"
    )


def _server(text: str, rest: str) -> ServerSource:
    base_url, _, model = rest.partition("#")
    if not base_url.startswith(("http://", "https://")) or not model:
        raise ConfigError(
            f"--policy {text}: write openai:BASE_URL#MODEL, for example openai:http://localhost:8000/v1#qwen"
        )
    return ServerSource(base_url, model)


def _folder(text: str, key: str) -> Path:
    path = Path(text).expanduser().resolve()
    if not path.is_dir():
        raise ConfigError(f"{key}: {path} is no folder; give {FORMS}")
    return path
