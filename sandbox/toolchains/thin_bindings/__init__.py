"""Bindings without pybind11's headers: nearly all use little of them, and reading them is most of a compile.

bindings.h stands in for pybind11.h. What it declares only writes down addresses and types; crossing.cpp, compiled once
with pybind11 itself, does the rest. Candidates that need more are compiled with pybind11's and torch's whole headers.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Callable
from pathlib import Path

from sandbox.toolchains.cxx_text import includes, strip_comments
from sandbox.toolchains.thin_bindings.errors import are_of_the_author

_HERE = Path(__file__).parent
FILES = {path.name: path.read_text() for pattern in ("*.h", "*.cpp") for path in sorted(_HERE.glob(pattern))}
STOOD_IN_FOR = (
    "torch/types.h",
    "torch/extension.h",
    "torch/torch.h",
    "torch/all.h",
    "torch/python.h",
    "torch/csrc/utils/pybind.h",
    "pybind11/pybind11.h",
    "pybind11/stl.h",
    "ATen/ATen.h",
    "ATen/Functions.h",
    *(f"ATen/ops/{name}.h" for name in re.findall(r"X\((\w+), ", FILES["factories.h"])),
)
"""Headers that are empty here, since what they are included for comes with the prefix."""
_OTHER_HEADERS = re.compile(r"(torch|pybind11)/.*|Python\.h")
_INCLUDES = re.compile(r"^#include <(ATen|torch)/.*>$", re.MULTILINE)
_STANDARD = re.compile(r'^# \d+ "[^"\n]*/c\+\+/[\w.]+/([a-z_]+(?:\.h)?)"', re.MULTILINE)
_MACRO = re.compile(r"^#(define|undef) (\w+)", re.MULTILINE)
_NAME = re.compile(r"[A-Za-z_]\w*")


class ThinBindings:
    """What `prepare` has put into a folder."""

    def __init__(self, home: Path) -> None:
        self._home = home
        self.flags = [*_include(home), "-include", str(home / "precompiled.h")]
        """Of g++, in front of those for torch's headers."""
        self.objects = [home / "crossing.o", home / "factories.o"]
        """To be linked with them."""

    def take(self, sources: dict[str, str]) -> bool:
        """Whether the sources are worth a try: with headers or macros that only the whole headers have they are not."""
        return self._home.is_dir() and all(self._takes(text) for text in sources.values())

    def are_of_the_author(self, output: str) -> bool:
        """Whether whole headers would give the same errors as `output` has."""
        return are_of_the_author(output, _words(self._home / "names"))

    def _takes(self, text: str) -> bool:
        names = {include.name for include in includes(text)}
        if any(name is None or (_OTHER_HEADERS.fullmatch(name) and name not in STOOD_IN_FOR) for name in names):
            return False
        return _words(self._home / "macros").isdisjoint(_NAME.findall(strip_comments(text)))


def prepare(home: Path, whole: Path, device_headers: str, torch_types: str, gxx: Callable[[list[str]], None]) -> None:
    """Fills `home`; `gxx` runs g++ in home's parent with the flags for torch's headers behind the arguments.

    `whole` is the prefix of the whole headers, already precompiled; `torch_types` the text of torch/types.h.
    """
    home.mkdir()
    for name in STOOD_IN_FOR:
        path = home / "include" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("")
    texts = FILES | {"torch_types.h": _INCLUDES.sub("", torch_types)}
    for name, text in texts.items():
        (home / name).write_text(text)
    all_text = _preprocessed([], whole, home / "whole.ii", gxx)
    # the same overloads of the same standard functions as with the whole headers
    standard = "".join(f"#include <{name}>\n" for name in sorted(set(_STANDARD.findall(all_text))))
    prefix = home / "precompiled.h"
    prefix.write_text(f'{standard}#include "prefix.h"\n{device_headers}')
    flags = _include(home)
    gxx([*flags, "-x", "c++-header", str(prefix), "-o", f"{prefix}.gch"])
    for name in ("crossing", "factories"):
        gxx(["-include", str(whole), "-c", str(home / f"{name}.cpp"), "-o", str(home / f"{name}.o")])
    differing = _macros(all_text) ^ _macros(_preprocessed(flags, prefix, home / "thin.ii", gxx))
    (home / "macros").write_text("\n".join(sorted(differing)))
    (home / "names").write_text("\n".join(sorted(set(_NAME.findall(all_text)))))


def _include(home: Path) -> list[str]:
    return ["-isystem", str(home / "include")]


def _preprocessed(flags: list[str], header: Path, target: Path, gxx: Callable[[list[str]], None]) -> str:
    """The text of `header` with all that it includes, and its #defines."""
    gxx([*flags, "-E", "-dD", "-x", "c++", str(header), "-o", str(target)])
    text = target.read_text(encoding="utf-8", errors="replace")
    target.unlink()
    return text


def _macros(text: str) -> set[str]:
    defined: set[str] = set()
    for directive, name in _MACRO.findall(text):
        (defined.add if directive == "define" else defined.discard)(name)
    return defined


@functools.lru_cache(maxsize=8)
def _words(path: Path) -> frozenset[str]:
    return frozenset(path.read_text().split("\n"))
