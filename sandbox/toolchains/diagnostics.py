"""Compiler and linker output, trimmed to the first errors an agent can act on."""

from __future__ import annotations

import re
from pathlib import Path

MAX_ERRORS = 4
MAX_CHARACTERS = 2400
_ERROR = re.compile(r"^(?P<file>[^:\n]+):(?P<line>\d+)(:\d+)?: (?:fatal )?error: ")
_HERE = re.compile(r"^(?P<file>[^:\n]+):(?P<line>\d+)(:\d+)?:\s+(required from|recursively required)")
_UNDEFINED = re.compile(r"undefined reference to `(?P<name>[^'\n]+)'")
_MULTIPLE = re.compile(r"multiple definition of `[^'\n]+'")


def trim_errors(output: str, folder: Path, *, sources: str = "kernels/") -> str:
    """The first errors with file:line and the offending source line, paths relative to `folder`.

    An error inside a system header is led by the place in `sources` that caused it.
    """
    lines = output.replace(f"{folder}/", "").splitlines()
    blocks = [_block(lines, index, sources) for index, line in enumerate(lines) if _ERROR.match(line)]
    blocks += _linker_errors(lines)
    if not blocks:
        return _clip("\n".join(line for line in lines if line.strip()) or "the compiler failed without a message")
    shown = list(dict.fromkeys(blocks))[:MAX_ERRORS]
    more = len(set(blocks)) - len(shown)
    return _clip("\n".join(shown) + (f"\n… and {more} more errors" if more > 0 else ""))


def unresolved(output: str, *, provided: re.Pattern[str]) -> list[str]:
    """Names the linker could not resolve, except those `provided` by the process that loads the object."""
    names = dict.fromkeys(match["name"] for match in _UNDEFINED.finditer(output))
    return [name for name in names if not provided.match(name)]


def _block(lines: list[str], index: int, sources: str) -> str:
    block = [_clip(lines[index], 400)]
    if not lines[index].startswith(sources):
        cause = next(
            (
                line
                for line in reversed(lines[max(0, index - 30) : index])
                if _HERE.match(line) and line.startswith(sources)
            ),
            None,
        )
        if cause is not None:
            block.insert(0, _clip(cause, 400))
    for line in lines[index + 1 : index + 3]:  # the source line and the caret under it
        if not re.match(r"^\s*(\d+)? \|", line):
            break
        block.append(_clip(line, 200))
    return "\n".join(block)


def _linker_errors(lines: list[str]) -> list[str]:
    found: list[str] = []
    for line in lines:
        match = _UNDEFINED.search(line) or _MULTIPLE.search(line)
        if match is not None and ": warning: " not in line:
            found.append(f"link error: {_clip(match[0], 300)}")
    return found


def _clip(text: str, limit: int = MAX_CHARACTERS) -> str:
    return text if len(text) <= limit else text[: limit - 1] + "…"
