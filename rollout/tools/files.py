"""read, write, edit, multi_edit: the workspace's files, one text at a time."""

from __future__ import annotations

from typing import Any

from rollout.tools.base import Files, ToolError
from rollout.tools.schema import Parameter, ToolSchema

_PATH = Parameter("path", "string", "File, relative to the workdir.")


class Read:
    schema = ToolSchema(
        "read",
        "Shows a text file, or `limit` lines of it from line `offset` on (first line: 1).",
        (
            _PATH,
            Parameter("offset", "integer", "First line to show.", required=False),
            Parameter("limit", "integer", "Number of lines to show.", required=False),
        ),
    )

    def __init__(self, files: Files) -> None:
        self._files = files

    async def run(self, *, path: str, offset: int = 1, limit: int | None = None) -> str:
        if offset < 1 or (limit is not None and limit < 1):
            raise ToolError("offset and limit start at 1")
        text = await self._files.read(path)
        lines = text.splitlines(keepends=True)
        if offset > max(len(lines), 1):
            raise ToolError(f"{path} has {len(lines)} lines, offset is {offset}")
        end = len(lines) if limit is None else offset - 1 + limit
        shown = "".join(lines[offset - 1 : end])
        return shown.removesuffix("\n") if shown else "[empty file]"


class Write:
    schema = ToolSchema(
        "write",
        "Creates a file, or replaces all of one that you have read. Folders are made as needed.",
        (_PATH, Parameter("content", "string", "The whole text of the file.")),
    )

    def __init__(self, files: Files) -> None:
        self._files = files

    async def run(self, *, path: str, content: str) -> str:
        text = content if content.endswith("\n") or not content else content + "\n"
        is_new = await self._files.write(path, text)
        return f"{'created' if is_new else 'wrote'} {path}"


class Edit:
    schema = ToolSchema(
        "edit",
        "Replaces the text `old`, which must occur exactly once, by `new` in a file that you have read.",
        (
            _PATH,
            Parameter("old", "string", "Text to replace, exactly as in the file."),
            Parameter("new", "string", "Text that takes its place."),
            Parameter("replace_all", "boolean", "Replace every occurrence.", required=False),
        ),
    )

    def __init__(self, files: Files) -> None:
        self._files = files

    async def run(self, *, path: str, old: str, new: str, replace_all: bool = False) -> str:
        text = await self._files.read_known(path)
        await self._files.write(path, _replace(text, old, new, path, replace_all=replace_all))
        return f"edited {path}"


class MultiEdit:
    schema = ToolSchema(
        "multi_edit",
        "Makes several replacements in one file, in order; if one fails the file stays as it was.",
        (
            _PATH,
            Parameter(
                "edits",
                "array",
                "JSON list of replacements; each `old` must occur once when its turn comes, or have replace_all.",
                items={
                    "type": "object",
                    "properties": {
                        "old": {"type": "string"},
                        "new": {"type": "string"},
                        "replace_all": {"type": "boolean"},
                    },
                    "required": ["old", "new"],
                },
            ),
        ),
    )

    def __init__(self, files: Files) -> None:
        self._files = files

    async def run(self, *, path: str, edits: list[dict[str, Any]]) -> str:
        if not edits:
            raise ToolError("edits is empty")
        text = await self._files.read_known(path)
        for number, edit in enumerate(edits, start=1):
            try:
                replace_all = edit.get("replace_all", False)
                text = _replace(text, edit["old"], edit["new"], path, replace_all=replace_all)
            except ToolError as error:
                raise ToolError(f"edit {number} of {len(edits)}: {error}; nothing was changed") from error
        await self._files.write(path, text)
        return f"made {len(edits)} edits in {path}"


def _replace(text: str, old: str, new: str, path: str, *, replace_all: bool) -> str:
    if not old:
        raise ToolError("old is empty; use write to create a file")
    if old == new:
        raise ToolError("old and new are the same")
    count = text.count(old)
    if count == 0:
        raise ToolError(f"old does not occur in {path}")
    if count > 1 and not replace_all:
        raise ToolError(f"old occurs {count} times in {path}; add lines around it, or set replace_all")
    return text.replace(old, new)
