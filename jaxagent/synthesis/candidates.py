"""Candidate tasks as they come: a folder of files or a parquet, whatever is wrong with them."""

from __future__ import annotations

from pathlib import Path

from jaxagent.synthesis.sources import is_synthetic, resolve_tasks
from sandbox.tasks import PARQUET_COLUMNS, TaskError, read_rows, task_files


def read_candidates(path: Path) -> list[tuple[str, str]]:
    """(name, code) of everything in `path`; names are paths in the folder, or the parquet's row numbers. Generated
    tasks (`synthetic_cuda:train`, see resolve_tasks) are read by their own names.

    Unlike sandbox.tasks.load_tasks it takes what is no task: to say so is the check's business. Raises TaskError where
    there is nothing to read.
    """
    if is_synthetic(str(path)):
        return [(task.task_id, task.code) for task in resolve_tasks(str(path))]
    path = path.expanduser()
    if not path.exists():
        raise TaskError(f"tasks check: {path} does not exist; give a folder of .py files, a .py file or a .parquet")
    if path.suffix == ".parquet":
        return [(f"{path.name}#{index}", row["code"] or "") for index, row in enumerate(read_rows(path))]
    files = task_files(path) if path.is_dir() else [path] if path.suffix == ".py" else []
    root = path if path.is_dir() else path.parent
    found = [(file.relative_to(root).as_posix(), file.read_text(encoding="utf-8", errors="replace")) for file in files]
    if not found:
        raise TaskError(
            f"tasks check: {path} holds no .py file, and is no parquet with columns {', '.join(PARQUET_COLUMNS)}"
        )
    return found
