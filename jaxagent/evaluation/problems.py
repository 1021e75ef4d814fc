"""Which problem of KernelBench a task is: its level and number, as file names and result files spell them."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass

from sandbox.types import Task

_LEVEL = re.compile(r"kernelbench/level(\d+)")
_NUMBER = re.compile(r"\d+")


@dataclass(frozen=True, slots=True)
class Problem:
    level: int | None
    """None: the task comes from elsewhere."""
    number: int


def number_problems(tasks: Iterable[Task]) -> dict[str, Problem]:
    """Problem by task id, numbers unique within a level.

    The number is the one that the task's name begins with. Where names of a level have none, or share one, all tasks
    of that level are numbered from 1 in their order.
    """
    levels: dict[int | None, list[Task]] = {}
    for task in tasks:
        level = _LEVEL.fullmatch(task.source)
        levels.setdefault(int(level[1]) if level else None, []).append(task)
    problems: dict[str, Problem] = {}
    for level, members in levels.items():
        numbers = [_NUMBER.match(task.task_id.rpartition("/")[2]) for task in members]
        chosen = [int(number[0]) for number in numbers if number]
        if len(set(chosen)) < len(members):
            chosen = list(range(1, len(members) + 1))
        problems |= {task.task_id: Problem(level, number) for task, number in zip(members, chosen, strict=True)}
    return problems
