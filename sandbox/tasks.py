"""Tasks in KernelBench form, from a file, a folder, or a parquet in the Ops-6K schema."""

from __future__ import annotations

import ast
import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from sandbox.types import Task

REQUIRED_FUNCTIONS = ("get_inputs", "get_init_inputs")
PARQUET_COLUMNS = ("ops", "data_source", "code")


class TaskError(ValueError):
    """A task source that cannot be used: says which file, what is missing and what to do."""


def load_tasks(source: str, *, split: str | None = None) -> list[Task]:
    """Tasks of `source`: a .py file, a folder of them, or a .parquet with columns ops, data_source and code.

    A folder is read in KernelBench's layout (`level1/7_Name.py`), as submissions (`name/model.py`) or flat, in the
    order of the numbers in the names. `split` labels the tasks; a parquet with a `split`, as a column or in the JSON of
    a column `metadata`, is filtered by it instead. No task code is run here.

    Raises:
        TaskError: nothing is there, a file has no Model, get_inputs or get_init_inputs, or a column is missing.
    """
    path = Path(source).expanduser()
    if not path.exists():
        raise TaskError(f"tasks: {source} does not exist; give a .py file, a folder of .py files, or a .parquet")
    if path.is_dir():
        tasks = list(_from_folder(path, split or "train"))
    elif path.suffix == ".py":
        tasks = [_from_file(path, path.stem, "file", split or "train")]
    elif path.suffix == ".parquet":
        tasks = list(_from_parquet(path, split))
    else:
        raise TaskError(f"tasks: {source} ends in {path.suffix or 'nothing'}; allowed: .py, .parquet, or a folder")
    if not tasks:
        raise TaskError(_nothing_found(path, split))
    return tasks


def read_rows(path: Path) -> list[dict[str, Any]]:
    """Rows of a parquet in the Ops-6K schema. Raises TaskError for another file."""
    import pyarrow
    import pyarrow.parquet

    try:
        table = pyarrow.parquet.read_table(path)
    except (OSError, pyarrow.ArrowInvalid) as error:
        raise TaskError(f"tasks: {path} is no readable parquet file: {error}") from error
    missing = [name for name in PARQUET_COLUMNS if name not in table.column_names]
    if missing:
        raise TaskError(
            f"tasks: {path} has no column {', '.join(missing)}; it has {', '.join(table.column_names)} and "
            f"needs {', '.join(PARQUET_COLUMNS)}"
        )
    return table.to_pylist()


def check_task(code: str) -> str | None:
    """What keeps `code` from being a task, or None. Looks at the syntax tree only."""
    try:
        tree = ast.parse(code)
    except (SyntaxError, ValueError) as error:
        return f"is not Python: {error}"
    classes = {node.name for node in tree.body if isinstance(node, ast.ClassDef)}
    functions = {node.name for node in tree.body if isinstance(node, ast.FunctionDef)}
    if "Model" not in classes:
        return "defines no class Model; the reference is `class Model(nn.Module)` with __init__ and forward"
    for name in REQUIRED_FUNCTIONS:
        if name not in functions:
            what = "the list of forward's inputs" if name == "get_inputs" else "the list of the constructor's arguments"
            return f"defines no function {name}(); add one that returns {what}"
    return None


def _from_folder(root: Path, split: str) -> Iterator[Task]:
    for path in task_files(root):
        relative = path.relative_to(root)
        parent = relative.parent if path.name != "model.py" else relative.parent.parent
        level = re.fullmatch(r"level(\d+)", parent.name or root.name)
        name = relative.parent if path.name == "model.py" and relative.parent.name else relative.with_suffix("")
        task_id = name.as_posix() if parent.name or not level else f"{root.name}/{name}"
        yield _from_file(path, task_id, f"kernelbench/{level[0]}" if level else "file", split)


def task_files(root: Path) -> list[Path]:
    """The files of a folder that hold tasks, in the order of the numbers in their names."""
    return sorted(_task_files(root), key=lambda path: _natural(path.relative_to(root).as_posix()))


def _task_files(root: Path) -> Iterator[Path]:
    """One task a file; a folder with a model.py is one task, whatever else lies in it."""
    if (root / "model.py").is_file():
        yield root / "model.py"
        return
    for path in root.iterdir():
        if path.name.startswith((".", "__")):
            continue
        if path.is_dir():
            yield from _task_files(path)
        elif path.suffix == ".py":
            yield path


def _from_file(path: Path, task_id: str, source: str, split: str) -> Task:
    try:
        code = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise TaskError(f"tasks: {path} cannot be read: {error}") from error
    return _task(code, str(path), task_id=task_id, source=source, ops=[], split=split)


def _from_parquet(path: Path, split: str | None) -> Iterator[Task]:
    for index, row in enumerate(read_rows(path)):
        metadata = json.loads(row.get("metadata") or "{}")
        row_split = row.get("split") or metadata.get("split")
        if split is not None and row_split is not None and row_split != split:
            continue
        task_id = row.get("task_id") or metadata.get("task_id") or f"{path.stem}/{index:05d}"
        yield _task(
            row["code"] or "",
            f"{path} row {index}",
            task_id=task_id,
            source=row["data_source"] or "parquet",
            ops=declared_ops(row["ops"]),
            split=row_split or split or "train",
        )


def _task(code: str, where: str, **fields: Any) -> Task:
    problem = check_task(code)
    if problem is not None:
        raise TaskError(f"tasks: {where} {problem}")
    return Task(code=code, **fields)


def declared_ops(value: str | list[str] | None) -> list[str]:
    """Ops-6K writes a JSON list as text for torch rows and a bare class name for transformers rows."""
    if not isinstance(value, str):
        return [str(op) for op in value or []]
    text = value.strip()
    if not text.startswith("["):
        return [text] if text else []
    try:
        return [str(op) for op in json.loads(text)]
    except json.JSONDecodeError as error:
        raise TaskError(f"tasks: column ops holds {text[:80]!r}, neither a JSON list nor one class name") from error


def _natural(name: str) -> list[tuple[int, str]]:
    """Sorts 2_b before 10_a: numbers by value, text by letters."""
    return [(int(part), "") if part.isdigit() else (-1, part) for part in re.split(r"(\d+)", name) if part]


def _nothing_found(path: Path, split: str | None) -> str:
    if path.suffix == ".parquet" and split is not None:
        return f"tasks: {path} has no row of split {split!r}"
    return f"tasks: {path} holds no .py file with a task"
