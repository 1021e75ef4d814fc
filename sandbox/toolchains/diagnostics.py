"""Compiler and linker output, trimmed to the first errors an agent can act on."""

from __future__ import annotations

import re
from pathlib import Path

MAX_ERRORS = 4
MAX_CHARACTERS = 2400
_ERROR = re.compile(
    r"^(?P<file>[^:\n]+):(?P<line>\d+)(:\d+)?: (?:fatal )?error: "
    r"|^(?P<cuda_file>[^(\n]+)\((?P<cuda_line>\d+)\): (?:catastrophic )?error"  # cudafe++ and cicc
    r"|^ptxas (?:error|fatal) |^ptxas [^\n]*, line \d+; (?:error|fatal) "
)
_PTXAS_SUMMARY = "Ptx assembly aborted due to errors"
_HERE = re.compile(r"^(?P<file>[^:\n]+):(?P<line>\d+)(:\d+)?:\s+(required from|recursively required)")
_AT_LINE = re.compile(r"at line (?P<line>\d+) of (?P<file>\S+)$")
_UNDEFINED = re.compile(r"undefined reference to `(?P<name>[^'\n]+)'")
_MULTIPLE = re.compile(r"multiple definition of `[^'\n]+'")


def trim_errors(output: str, folder: Path, *, sources: str = "kernels/") -> str:
    """The first errors with file:line and the offending source line, paths relative to `folder`.

    An error inside a system header is led by the place in `sources` that caused it.
    """
    lines = output.replace(f"{folder}/", "").splitlines()
    blocks = [
        _block(lines, index, sources)
        for index, line in enumerate(lines)
        if _ERROR.match(line) and _PTXAS_SUMMARY not in line
    ]
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
    if lines[index].startswith("ptxas"):
        return _clip(lines[index], 400)
    is_cuda = "): " in lines[index] and not re.match(r"^[^:\n]+:\d+", lines[index])
    follow, cause = (_cuda_context if is_cuda else _gcc_context)(lines, index, sources)
    block = [] if cause is None or lines[index].startswith(sources) else [_clip(cause, 400)]
    return "\n".join([*block, _clip(lines[index], 400), *(_clip(line, 200) for line in follow)])


def _gcc_context(lines: list[str], index: int, sources: str) -> tuple[list[str], str | None]:
    """The source line and the caret under it; the place in `sources` that an error elsewhere came from."""
    cause = next(
        (
            line
            for line in reversed(lines[max(0, index - 30) : index])
            if _HERE.match(line) and line.startswith(sources)
        ),
        None,
    )
    follow = lines[index + 1 : index + 3]
    shown = next((at for at, line in enumerate(follow) if not re.match(r"^\s*(\d+)? \|", line)), len(follow))
    return follow[:shown], cause


def _cuda_context(lines: list[str], index: int, sources: str) -> tuple[list[str], str | None]:
    """The same of NVIDIA's front end, which names the instantiations after the error and ends it with a blank line."""
    end = next((at for at in range(index + 1, len(lines)) if not lines[at].strip()), len(lines))
    body = lines[index + 1 : end]
    origins = [match for line in body if (match := _AT_LINE.search(line)) and match["file"].startswith(sources)]
    cause = f"{origins[-1]['file']}({origins[-1]['line']}): required from here" if origins else None
    caret = next((at for at, line in enumerate(body) if line.strip() == "^"), 1)
    return body[: min(caret + 1, 4)], cause


def _linker_errors(lines: list[str]) -> list[str]:
    found: list[str] = []
    for line in lines:
        match = _UNDEFINED.search(line) or _MULTIPLE.search(line)
        if match is not None and ": warning: " not in line:
            found.append(f"link error: {_clip(match[0], 300)}")
    return found


def _clip(text: str, limit: int = MAX_CHARACTERS) -> str:
    return text if len(text) <= limit else text[: limit - 1] + "…"
