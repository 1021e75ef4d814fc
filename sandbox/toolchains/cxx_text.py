"""C++ source as text: comments and literals taken out, includes listed. No preprocessing, no compiler."""

from __future__ import annotations

import bisect
import re
from dataclasses import dataclass

_TOKENS = re.compile(
    r"""(?P<raw>\b(?:u8|[uUL])?R"(?P<tag>[^()\\\s]{0,16})\((?:.*?\)(?P=tag)"|.*\Z))"""
    r"""|(?P<line>//[^\n]*)"""
    r"""|(?P<block>/\*.*?(?:\*/|\Z))"""
    r"""|(?P<string>"(?:\\.|[^"\\\n])*")"""
    r"""|(?P<char>(?:\bu8|(?<![0-9a-fA-F]))'(?:\\.|[^'\\\n])+')""",
    re.DOTALL | re.VERBOSE,
)
_INCLUDE = re.compile(r"^[ \t]*(?:\#|%:)[ \t]*(?:include|include_next|import)\b[ \t]*(?P<what>[^\n]*)", re.MULTILINE)


@dataclass(frozen=True, slots=True)
class Include:
    """One #include: `name` is None where it is a macro; `quoted` tells "…" from <…>."""

    line: int
    name: str | None
    quoted: bool


def strip_comments(source: str, *, keep_strings: bool = False) -> str:
    """`source` with comments blanked and literals emptied; line numbers stay, spliced lines are joined in place."""

    def blank(match: re.Match[str]) -> str:
        text = match[0]
        newlines = "\n" * text.count("\n")
        if match["line"] is not None or match["block"] is not None:
            return " " + newlines
        if keep_strings:
            return text
        return ("' '" if match["char"] is not None else '""') + newlines

    return _TOKENS.sub(blank, _splice(source))


class Lines:
    """Line numbers of offsets, in a time that does not grow with the text."""

    def __init__(self, text: str) -> None:
        self._breaks = [match.start() for match in re.finditer("\n", text)]

    def at(self, offset: int) -> int:
        return bisect.bisect_left(self._breaks, offset) + 1


def includes(source: str) -> list[Include]:
    """Every include directive outside comments."""
    text = strip_comments(source, keep_strings=True)
    lines = Lines(text)
    found: list[Include] = []
    for match in _INCLUDE.finditer(text):
        what = match["what"].strip()
        name = re.match(r'<([^>\n]+)>|"([^"\n]+)"', what)
        found.append(
            Include(
                line=lines.at(match.start("what")),
                name=(name[1] or name[2]) if name else None,
                quoted=what.startswith('"'),
            )
        )
    return found


def _splice(source: str) -> str:
    """Joins lines that end in a backslash and gives the newlines back after the joined line."""
    lines: list[str] = []
    pending, owed = "", 0
    for line in source.replace("\r\n", "\n").split("\n"):
        if line.rstrip(" \t").endswith("\\"):
            pending += line.rstrip(" \t")[:-1]
            owed += 1
            continue
        lines.append(pending + line)
        lines.extend([""] * owed)
        pending, owed = "", 0
    if owed:
        lines.append(pending)
    return "\n".join(lines)
