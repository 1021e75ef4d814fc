"""todo_write, notebook_edit: the model's own list, and cells of a Jupyter notebook."""

from __future__ import annotations

import json
from typing import Any

from rollout.tools.base import Files, ToolError
from rollout.tools.schema import Parameter, ToolSchema

_STATES = {"pending": "[ ]", "in_progress": "[~]", "completed": "[x]"}
_MODES, _CELLS = ("replace", "insert", "delete"), ("code", "markdown")


class TodoWrite:
    schema = ToolSchema(
        "todo_write",
        "Replaces your list of things to do; it is shown back to you.",
        (
            Parameter(
                "todos",
                "array",
                "JSON list; status is pending, in_progress or completed.",
                items={
                    "type": "object",
                    "properties": {"content": {"type": "string"}, "status": {"type": "string", "enum": [*_STATES]}},
                    "required": ["content", "status"],
                },
            ),
        ),
    )

    async def run(self, *, todos: list[dict[str, str]]) -> str:
        return "\n".join(f"{_STATES[todo['status']]} {todo['content']}" for todo in todos) or "the list is empty"


class NotebookEdit:
    schema = ToolSchema(
        "notebook_edit",
        "Replaces, inserts or deletes one cell of a Jupyter notebook that you have read.",
        (
            Parameter("path", "string", "The .ipynb file, relative to the workdir."),
            Parameter("cell", "integer", "Index of the cell, from 0; an insertion comes before it."),
            Parameter("source", "string", "Text of the cell (not needed to delete).", required=False),
            Parameter("mode", "string", "replace is the default.", required=False, enum=_MODES),
            Parameter("cell_type", "string", "For an insertion; code is the default.", required=False, enum=_CELLS),
        ),
    )

    def __init__(self, files: Files) -> None:
        self._files = files

    async def run(
        self, *, path: str, cell: int, source: str = "", mode: str = "replace", cell_type: str = "code"
    ) -> str:
        notebook = _parse(await self._files.read_known(path), path)
        cells: list[dict[str, Any]] = notebook["cells"]
        last = len(cells) if mode == "insert" else len(cells) - 1
        if not 0 <= cell <= last:
            raise ToolError(f"cell {cell} is not within 0 to {last} of {path}")
        if mode == "insert":
            outputs = {"execution_count": None, "outputs": []} if cell_type == "code" else {}
            cells.insert(cell, {"cell_type": cell_type, "metadata": {}, "source": source} | outputs)
        elif mode == "delete":
            del cells[cell]
        else:
            cells[cell]["source"] = source
            if cells[cell].get("cell_type") == "code":
                cells[cell] |= {"execution_count": None, "outputs": []}
        await self._files.write(path, json.dumps(notebook, indent=1) + "\n")
        return f"{path} has {len(cells)} cells"


def _parse(text: str, path: str) -> dict[str, Any]:
    try:
        notebook = json.loads(text)
    except ValueError as error:
        raise ToolError(f"{path} is not a notebook: {error}") from error
    if not isinstance(notebook, dict) or not isinstance(notebook.get("cells"), list):
        raise ToolError(f"{path} is not a notebook: it has no list of cells")
    return notebook
