"""The text of a composed task: class Model, get_inputs, get_init_inputs."""

from __future__ import annotations

import re
from collections.abc import Sequence

from jaxagent.synthesis.catalogue.rule import Step


def write_task(steps: Sequence[Step], first_input: str) -> str:
    """`first_input`: source of the tensor that flows into the first step.

    Sizes become arguments of the constructor; equal sizes under one name are one argument.
    """
    sizes: dict[str, int] = {}
    made, run, others = [], [], []
    for step in steps:
        names = {name: _argument(name, value, sizes) for name, value in step.sizes.items()}
        attribute = "self." + _snake(step.rule.rpartition(".")[2])
        if step.module is not None:
            made.append(f"{attribute} = {step.module.format(**names)}")
        other = ""
        if step.other is not None:
            other = "y" if not others else f"y{len(others) + 1}"
            others.append((other, step.other))
        run.append("x = " + step.call.replace("{self}", attribute).replace("{other}", other))
    run[-1] = "return " + run[-1].removeprefix("x = ")
    inputs = [first_input, *(source for _, source in others)]
    lines = [
        "import torch",
        "import torch.nn as nn",
        *(["import torch.nn.functional as F"] if any("F." in line for line in run) else []),
        "",
        "",
        "class Model(nn.Module):",
        f"    def __init__({', '.join(['self', *sizes])}):",
        "        super().__init__()",
        *(f"        {line}" for line in made),
        "",
        f"    def forward({', '.join(['self', 'x', *(name for name, _ in others)])}):",
        *(f"        {line}" for line in run),
        "",
        "",
        "def get_inputs():",
        f"    return [{', '.join(inputs)}]",
        "",
        "",
        "def get_init_inputs():",
        f"    return [{', '.join(map(str, sizes.values()))}]",
        "",
    ]
    return "\n".join(lines)


def _argument(name: str, value: int, sizes: dict[str, int]) -> str:
    """The argument that holds this size: an earlier one of the same meaning, or a new one."""
    candidate, number = name, 1
    while candidate in sizes and sizes[candidate] != value:
        number += 1
        candidate = f"{name}_{number}"
    sizes[candidate] = value
    return candidate


def _snake(name: str) -> str:
    return re.sub(r"(?<=[a-z0-9])(?=[A-Z][a-z])", "_", name).lower()
