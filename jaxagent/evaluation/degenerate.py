"""Problems of KernelBench that an answer without the work can pass: listed apart, never silently in or out.

Found by running the references of levels 1 and 2 twice with other inputs and the same weights, at commit 423217d: the
output of these hardly depends on the input, so one fixed tensor passes an absolute tolerance of 1e-2. Level 3 was not
measured.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from jaxagent.evaluation.problems import Problem

_ZERO = "the output is exactly zero"
_CONSTANT = "the output is the same for all inputs"
_TINY = "the output is below 1e-2 everywhere: zeros pass"
_STIFF = "the output hardly moves with the input: a constant made from the weights passes"
_FOUND: dict[str, dict[int, tuple[int, ...]]] = {
    _ZERO: {2: (9, 80, 83)},
    _CONSTANT: {2: (23, 36, 58)},
    _TINY: {1: (23, 37, 39), 2: (38, 66, 84, 99)},
    _STIFF: {1: (98,), 2: (8, 10, 42, 44, 45, 49, 64, 77, 91, 96)},
}
DEGENERATE: dict[Problem, str] = {
    Problem(level, number): reason
    for reason, levels in _FOUND.items()
    for level, numbers in levels.items()
    for number in numbers
}


def degenerate_tasks(problems: Mapping[str, Problem], task_ids: Iterable[str]) -> dict[str, str]:
    """{task_id: reason} of those among `task_ids`, by level and number."""
    found = {task_id: DEGENERATE[problems[task_id]] for task_id in task_ids if problems[task_id] in DEGENERATE}
    return dict(sorted(found.items(), key=lambda item: (problems[item[0]].level or 0, problems[item[0]].number)))
