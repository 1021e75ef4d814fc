"""Layers of transformers that can stand alone: made from a small config, without weights, called on hidden states.

They are found in the packages' source, which is parsed and not imported: importing all models takes minutes.
"""

from __future__ import annotations

import ast
import importlib.util
from dataclasses import dataclass
from functools import cache
from pathlib import Path

_FIRST = ("hidden_states", "hidden_state", "x", "inputs", "input_tensor")
_MORE = ("layer_idx", "layer_id", "layer_index")


@dataclass(frozen=True, slots=True)
class Block:
    """One class. `why`: what keeps it from being used alone; None where nothing does."""

    module: str
    cls: str
    config: str | None
    arguments: tuple[str, ...]
    """Of its constructor, without self."""
    why: str | None

    @property
    def name(self) -> str:
        return f"{self.module}.{self.cls}"


@cache
def find_blocks() -> tuple[Block, ...]:
    """Every class of transformers' models whose constructor takes a config; () where transformers is not installed."""
    spec = importlib.util.find_spec("transformers")
    if spec is None or spec.origin is None:
        return ()
    root = Path(spec.origin).parent / "models"
    return tuple(
        block
        for path in sorted(root.glob("*/modeling_*.py"))
        if not path.stem.startswith(("modeling_tf_", "modeling_flax_"))
        for block in _in_file(path, f"transformers.models.{path.parent.name}.{path.stem}")
    )


def _in_file(path: Path, module: str) -> list[Block]:
    tree = ast.parse(path.read_text(encoding="utf-8"))
    modules = []
    for node in tree.body:
        if not isinstance(node, ast.ClassDef) or "nn.Module" not in [ast.unparse(base) for base in node.bases]:
            continue
        methods = {item.name: item for item in node.body if isinstance(item, ast.FunctionDef)}
        if "__init__" in methods and "forward" in methods:
            modules.append((node.name, methods["__init__"].args, methods["forward"].args))
    stated = {config for _, init, _ in modules if (config := _stated_config(init)) is not None}
    # some classes of a file leave out what all others of it say
    only = stated.pop() if len(stated) == 1 else None
    return [_block(module, cls, init, forward, _stated_config(init) or only) for cls, init, forward in modules]


def _stated_config(init: ast.arguments) -> str | None:
    """The annotation of the argument `config`."""
    annotations = (argument.annotation for argument in init.args[1:] if argument.arg == "config")
    return next((ast.unparse(annotation) for annotation in annotations if annotation is not None), None)


def _block(module: str, cls: str, init: ast.arguments, forward: ast.arguments, config: str | None) -> Block:
    required = [argument.arg for argument in _required(init)]
    needs = [argument.arg for argument in _required(forward)]
    why = None
    if required[:1] != ["config"] or any(name not in _MORE for name in required[1:]):
        why = f"its constructor takes {', '.join(required) or 'no config'}"
    elif config is None or not config.isidentifier():
        why = f"the class of its config is not stated ({config})"
    elif len(needs) != 1 or needs[0] not in _FIRST:
        why = f"forward needs {', '.join(needs)}"
    return Block(module, cls, config, tuple(required), why)


def _required(arguments: ast.arguments) -> list[ast.arg]:
    """Positional arguments without a default, self left out, and keyword-only ones without."""
    positional = arguments.args[: len(arguments.args) - len(arguments.defaults)][1:]
    keywords = [
        argument
        for argument, default in zip(arguments.kwonlyargs, arguments.kw_defaults, strict=True)
        if default is None
    ]
    return positional + keywords
