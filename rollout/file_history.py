"""The files of a dialogue as its tool calls made them, so that a viewer can show each version against the one before.

What a shell command did to a file is not in the record, and not followed: a version is what `write`, `edit` or
`multi_edit` left, going by the text that the model knew.
"""

from __future__ import annotations

import difflib
import posixpath
from collections import Counter
from dataclasses import dataclass
from typing import Any

from rollout.types import ToolCall

_MAX_EQUAL_PAIRS = 300_000
"""SequenceMatcher's time grows with the pairs of equal lines, and a policy chooses the lines: above that a version is
shown whole."""


@dataclass(frozen=True, slots=True)
class FileVersion:
    """One text that a file had. `opcodes` (tag, i1, i2, j1, j2) lead from the lines of `before` to those of `text`."""

    path: str
    text: str
    before: str | None
    """The text it replaced; None for the first version that is known."""
    opcodes: list[tuple[str, int, int, int, int]]


class FileHistory:
    """Follows the calls of one dialogue in order."""

    def __init__(self) -> None:
        self._texts: dict[str, str] = {}

    @property
    def texts(self) -> dict[str, str]:
        """What each known file holds now, by path; of files that were only read, as they were read."""
        return dict(self._texts)

    def follow(self, call: ToolCall, observation: str | None) -> FileVersion | None:
        """The version that a call made; None where it changed nothing (it failed, or only read)."""
        path = call.arguments.get("path")
        if call.error is not None or observation is None or observation.startswith("error:"):
            return None
        if not isinstance(path, str) or "\0" in path:
            return None
        path = posixpath.normpath(path.strip())
        if call.name == "read":
            self._remember(path, call.arguments, observation)
            return None
        before = self._texts.get(path)
        text = _text_after(call, before)
        if text is None:
            return None
        self._texts[path] = text
        return FileVersion(path, text, before, _opcodes(before, text))

    def _remember(self, path: str, arguments: dict[str, Any], observation: str) -> None:
        """A file that was there before the dialogue, as far as it was read whole."""
        whole = "offset" not in arguments and "limit" not in arguments and "characters cut ...]" not in observation
        if whole and path not in self._texts and observation != "[empty file]":
            self._texts[path] = observation + "\n"


def _text_after(call: ToolCall, before: str | None) -> str | None:
    arguments = call.arguments
    if call.name == "write":
        content = arguments.get("content")
        if not isinstance(content, str):
            return None
        return content if content.endswith("\n") or not content else content + "\n"
    if call.name not in ("edit", "multi_edit") or before is None:
        return None
    edits = arguments.get("edits") if call.name == "multi_edit" else [arguments]
    text = before
    for edit in edits if isinstance(edits, list) else []:
        old, new = (edit.get("old"), edit.get("new")) if isinstance(edit, dict) else (None, None)
        if not isinstance(old, str) or not isinstance(new, str) or not old:
            return None
        text = text.replace(old, new) if edit.get("replace_all") else text.replace(old, new, 1)
    return text if text != before else None


def _opcodes(before: str | None, text: str) -> list[tuple[str, int, int, int, int]]:
    if before is None:
        return []
    # Split as the page does it: at "\n" alone, so that line numbers agree whatever else a text holds.
    old, new = before.split("\n"), text.split("\n")
    counts = Counter(old)
    if sum(counts[line] for line in new) > _MAX_EQUAL_PAIRS:
        return []
    return list(difflib.SequenceMatcher(None, old, new, autojunk=False).get_opcodes())
