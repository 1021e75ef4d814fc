"""`jaxagent tasks show`: which tasks a source holds, and the model.py of one."""

from __future__ import annotations

import ast
import difflib

from jaxagent.synthesis.sources import resolve_tasks
from sandbox.tasks import TaskError
from sandbox.types import Task

_SUMMARY_CHARS = 100


def list_tasks(source: str) -> list[tuple[str, str]]:
    """(id, one line on what it computes) of every task of `source`, in its order. Raises TaskError."""
    return [(task.task_id, summary(task)) for task in resolve_tasks(source)]


def task_text(source: str, task_id: str) -> str:
    """The model.py of one task. Raises TaskError, also where `source` has no task of that id."""
    tasks = {task.task_id: task for task in resolve_tasks(source)}
    if task_id not in tasks:
        near = difflib.get_close_matches(task_id, tasks, n=1)
        guess = f"did you mean {near[0]}? " if near else ""
        raise TaskError(
            f"tasks: {source} has no task {task_id!r}; {guess}`jaxagent tasks show '{source}'` lists its {len(tasks)}"
        )
    code = tasks[task_id].code
    return code if code.endswith("\n") else f"{code}\n"


def summary(task: Task) -> str:
    """The first line of the docstring of Model; else its declared operators; else what forward does."""
    model = next(n for n in ast.parse(task.code).body if isinstance(n, ast.ClassDef) and n.name == "Model")
    docstring = ast.get_docstring(model)
    if docstring:
        line = docstring.splitlines()[0]
    elif task.ops:
        line = ", ".join(task.ops)
    else:
        forward = [n for n in model.body if isinstance(n, ast.FunctionDef) and n.name == "forward"]
        steps = [ast.unparse(step) for function in forward for step in function.body if not _is_text(step)]
        line = " ".join("; ".join(steps).split())
    return line if len(line) <= _SUMMARY_CHARS else f"{line[: _SUMMARY_CHARS - 1]}…"


def _is_text(step: ast.stmt) -> bool:
    return isinstance(step, ast.Expr) and isinstance(step.value, ast.Constant)
