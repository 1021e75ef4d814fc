"""What the installed torch and transformers offer, and which of it the shape rules cover. Nothing is dropped silently.

torch.nn modules ┐
torch functions  ├─► entry: family and layouts (a rule) | why it is left out | unknown
transformers     ┘
"""

from __future__ import annotations

import importlib.metadata
import inspect
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from typing import Any, Literal

from jaxagent.synthesis.catalogue import RULES
from jaxagent.synthesis.catalogue.blocks import Block, find_blocks

_LEFT_OUT: dict[str, str] = {
    "Dropout": "does nothing in eval mode",
    "Identity": "does nothing",
    "Lazy": "takes its shape from the first input",
    "Sequential": "a container",
    "ModuleList": "a container",
    "ModuleDict": "a container",
    "ParameterList": "a container",
    "ParameterDict": "a container",
    "Container": "a container",
    "dropout": "does nothing in eval mode, random in training",
    "rand": "random",
    "bernoulli": "random",
    "multinomial": "random",
    "normal": "random, or creates a tensor",
    "poisson": "random",
    "quantize": "for quantised tensors",
    "fake_quant": "for quantised tensors",
    "_like": "creates a tensor",
    "sparse": "gives or takes sparse tensors",
    "save": "works with files",
    "is_": "asks about a tensor",
}
"""Part of a name -> why no rule is wanted."""


@dataclass(frozen=True, slots=True)
class Entry:
    """One operator. `status`: covered by a rule, left out for a reason, or unknown."""

    name: str
    kind: Literal["module", "function", "block"]
    status: Literal["rule", "left out", "unknown"]
    signature: str | None
    family: str | None = None
    layouts: tuple[str, ...] = ()
    why: str | None = None


@dataclass(frozen=True, slots=True)
class Catalogue:
    """Operators of the installed packages, by status, with the packages' versions."""

    versions: dict[str, str]
    entries: list[Entry]

    def count(self, status: str) -> int:
        return sum(entry.status == status for entry in self.entries)

    def to_json(self) -> dict[str, Any]:
        return {
            "versions": self.versions,
            "counts": {status: self.count(status) for status in ("rule", "left out", "unknown")},
            "entries": [asdict(entry) for entry in self.entries],
        }


def mine() -> Catalogue:
    """Reads torch's public names and transformers' source. Imports torch, not transformers' models."""
    versions = {name: importlib.metadata.version(name) for name in ("torch", "transformers")}
    entries = [_entry(name, kind, what) for name, kind, what in _torch_names()]
    known = {entry.name for entry in entries}
    entries += [
        Entry(name, "function", "rule", None, rule.family, rule.layouts)
        for name, rule in RULES.items()
        if name not in known
    ]
    entries += [_block_entry(block) for block in find_blocks()]
    return Catalogue(versions, sorted(entries, key=lambda entry: entry.name))


def _torch_names() -> Iterator[tuple[str, Literal["module", "function"], Any]]:
    import torch
    from torch.overrides import get_overridable_functions

    for name in sorted(torch.nn.modules.__all__):
        what = getattr(torch.nn, name)
        if inspect.isclass(what) and issubclass(what, torch.nn.Module):
            yield f"torch.nn.{name}", "module", what
    spaces = {
        torch: "torch",
        torch.nn.functional: "torch.nn.functional",
        torch.special: "torch.special",
        torch.linalg: "torch.linalg",
        torch.fft: "torch.fft",
    }
    overridable = get_overridable_functions()
    for space, prefix in spaces.items():
        for what in sorted(overridable.get(space, []), key=lambda function: function.__name__):
            name = what.__name__
            is_public = not name.startswith("_") and not name.endswith("_") and getattr(space, name, None) is what
            if is_public:
                yield f"{prefix}.{name.removeprefix(prefix.removeprefix('torch.') + '_')}", "function", what


def _entry(name: str, kind: Literal["module", "function"], what: Any) -> Entry:
    rule = RULES.get(name)
    if rule is not None:
        return Entry(name, kind, "rule", _signature(what), rule.family, rule.layouts)
    last = name.rpartition(".")[2]
    why = next((why for part, why in _LEFT_OUT.items() if part in last), None)
    return Entry(name, kind, "unknown" if why is None else "left out", _signature(what), why=why)


def _block_entry(block: Block) -> Entry:
    signature = f"({', '.join(block.arguments)})"
    if block.why is not None:
        return Entry(block.name, "block", "unknown", signature, why=block.why)
    return Entry(block.name, "block", "rule", signature, "transformers", ("sequence",))


def _signature(what: Any) -> str | None:
    """None for a builtin that has none to tell."""
    try:
        return str(inspect.signature(what))
    except (ValueError, TypeError):
        text = (what.__doc__ or "").strip().split("\n", 1)[0]
        return text[:200] if "(" in text else None
