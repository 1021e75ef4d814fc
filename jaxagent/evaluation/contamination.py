"""Whether evaluated tasks were trained on: what a table of results has to say beside its figures.

Two programs are the same task where class Model has the same normal form (jaxagent.synthesis.normal_form); they have
the same structure where they differ in numbers as well (sizes, kernel widths).
"""

from __future__ import annotations

import ast
from collections.abc import Sequence
from dataclasses import dataclass

from jaxagent.synthesis.normal_form import normalised, tokens_of
from sandbox.types import Task


@dataclass(frozen=True, slots=True, kw_only=True)
class Contamination:
    """What was found among `num_train` training tasks."""

    train_source: str
    num_train: int | None
    """None: the training tasks are not known (a model from elsewhere)."""
    same: list[str]
    """Ids of evaluated tasks that are among the training tasks."""
    same_structure: list[str]
    """Ids of those that differ from a training task in numbers alone, without those in `same`."""

    def sentence(self, num_evaluated: int) -> str:
        if self.num_train is None:
            return f"Contamination: not known; {self.train_source}"
        text = (
            f"Contamination: of {num_evaluated} evaluated tasks {len(self.same)} are among the {self.num_train} "
            f"training tasks ({self.train_source}), and {len(self.same_structure)} more differ from one in numbers "
            "alone"
        )
        names = [*self.same, *self.same_structure]
        return text + (f": {', '.join(names[:10])}{', …' if len(names) > 10 else ''}" if names else "")


def unknown(reason: str) -> Contamination:
    return Contamination(train_source=reason, num_train=None, same=[], same_structure=[])


def contamination(evaluated: Sequence[Task], train: Sequence[Task], *, train_source: str) -> Contamination:
    exact = {form for task in train if (form := _form(task.code, numbers=True))}
    loose = {form for task in train if (form := _form(task.code, numbers=False))}
    same = [task.task_id for task in evaluated if _form(task.code, numbers=True) in exact]
    known = set(same)
    similar = [task.task_id for task in evaluated if _form(task.code, numbers=False) in loose]
    return Contamination(
        train_source=train_source,
        num_train=len(train),
        same=same,
        same_structure=[task_id for task_id in similar if task_id not in known],
    )


def _form(code: str, *, numbers: bool) -> str | None:
    """Class Model as a text in which only what matters is left; None where there is none."""
    try:
        tree = ast.parse(code)
    except (SyntaxError, ValueError):
        return None
    models = [node for node in tree.body if isinstance(node, ast.ClassDef) and node.name == "Model"]
    if not models:
        return None
    model = ast.unparse(models[-1])
    return normalised(model) if numbers else " ".join(tokens_of(model))
