"""Whose fault a compiler's errors are: the author's under any headers, or perhaps that of headers that declare less."""

from __future__ import annotations

import re
from collections.abc import Set

_ERROR = re.compile(r"^(?P<file>[^:\n]+):\d+(?::\d+)?: (?:fatal )?error: (?P<text>[^\n]*)$", re.MULTILINE)
_LINKER = re.compile(r"(?:undefined reference to|multiple definition of) `(?P<name>[^'\n]+)'")
_LIBRARIES = re.compile(r"\b(?:pybind11|py|torch|at|c10)::")
_TEXT_ALONE = re.compile(
    r"expected |stray |missing terminating |unterminated |redefinition of |conflicting declaration |redeclaration of "
    r"|invalid conversion from |cannot convert |assignment of read-only |invalid operands of types "
    r"|lvalue required |too (?:few|many) arguments to function |(?:break|continue) statement not within "
)
"""Errors that follow from what stands in the file, where they name nothing of the libraries."""
_UNKNOWN_NAME = re.compile(
    r"'(?P<name>\w+)' (?:was not declared in this scope|(?:in namespace '\w+' )?does not name a |is not a member of ')"
)
_UNKNOWN_MEMBER = re.compile(r"'(?:const )?class at::Tensor'\}? has no member named ")
"""Thin bindings have the whole class."""


def are_of_the_author(output: str, names: Set[str]) -> bool:
    """Whether every error in g++'s and the linker's `output` stands in kernels/ and would be there as well with headers
    that declare more; `names` are all identifiers in those."""
    compiled = [(match["file"], match["text"]) for match in _ERROR.finditer(output)]
    linked = [match["name"] for match in _LINKER.finditer(output)]
    if not compiled and not linked:
        return False
    return all(file.startswith("kernels/") and _is_of_the_author(text, names) for file, text in compiled) and not any(
        _LIBRARIES.search(name) for name in linked
    )


def _is_of_the_author(text: str, names: Set[str]) -> bool:
    unknown = _UNKNOWN_NAME.match(text)
    if unknown is not None:
        return unknown["name"] not in names
    if _UNKNOWN_MEMBER.search(text):
        return True
    return _TEXT_ALONE.match(text) is not None and _LIBRARIES.search(text) is None
