"""Lookups by computed names in model_new.py."""

from __future__ import annotations

import json
import math
from types import SimpleNamespace

import pytest
import torch

from sandbox.judge.lookups import guarded_builtins


def run(text: str, told: list[str], **names: object) -> dict[str, object]:
    space = {"__builtins__": guarded_builtins(told.append), **names}
    exec(text, space)
    return space


def test_what_may_be_named_of_a_module_may_be_looked_up():
    told: list[str] = []
    space = run(
        "x = getattr(torch, 'float' + '16'); y = getattr(math, 'pi'); z = hasattr(torch, 'softmax')",
        told,
        torch=torch,
        math=math,
    )
    assert (space["x"], space["y"], space["z"], told) == (torch.float16, math.pi, True, [])


def test_ordinary_names_are_looked_up_as_ever():
    told: list[str] = []
    text = "setattr(x, 'a' + '1', 5); y = getattr(x, 'a' + '1') + getattr(x, 'b', 2); z = hasattr(x, 'c'); delattr(x, 'a1')"
    space = run(text, told, x=SimpleNamespace())
    assert (space["y"], space["z"], vars(space["x"]), told) == (7, False, {}, [])


@pytest.mark.parametrize(
    "text",
    [
        "getattr(f, '_' * 2 + 'globals' + '_' * 2)",
        "getattr(f, 'f_' + 'back')",
        "getattr(module, '__' + 'dict__')",
        "getattr(torch, 'o' + 's')",
        "getattr(torch, 'n' + 'n')",
        "getattr(torch, 'comp' + 'ile')",
        "setattr(torch, 're' + 'lu', None)",
        "getattr(json, 'du' + 'mps')",
        "hasattr(f, Name('x'))",
        "delattr(f, '_' + 'C')",
    ],
)
def test_internals_and_modules_are_refused_and_told(text):
    told: list[str] = []

    class Name(str):
        pass

    with pytest.raises(AttributeError, match="a model needs no"):
        run(text, told, f=lambda: 0, module=math, torch=torch, json=json, Name=Name)
    assert len(told) == 1
