"""How tool calls are written in a policy's text: one parser a convention, each also writes what it reads."""

from __future__ import annotations

from rollout.parsers.base import Parser, ToolSyntaxError
from rollout.parsers.hermes import HermesParser
from rollout.parsers.llama import LlamaParser
from rollout.parsers.qwen3_coder import Qwen3CoderParser
from rollout.parsers.react import ReactParser

__all__ = ["Parser", "ToolSyntaxError", "make_parser"]

_PARSERS: dict[str, type[Parser]] = {
    "qwen3_coder": Qwen3CoderParser,
    "hermes": HermesParser,
    "llama": LlamaParser,
    "react": ReactParser,
}


def make_parser(name: str) -> Parser:
    if name not in _PARSERS:
        raise ValueError(f"dialogue.parser={name!r} is not known; allowed: {', '.join(_PARSERS)}")
    return _PARSERS[name]()
