"""Lookups by computed names in model_new.py."""

from __future__ import annotations

import math
from types import SimpleNamespace

import pytest

from sandbox.judge.lookups import guarded_builtins


def run(text: str, told: list[str], **names: object) -> dict[str, object]:
    space = {"__builtins__": guarded_builtins(told.append), **names}
    exec(text, space)
    return space


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
        "getattr(module, 'pi')",
        "hasattr(f, Name('x'))",
        "delattr(f, '_' + 'C')",
    ],
)
def test_internals_and_modules_are_refused_and_told(text):
    told: list[str] = []

    class Name(str):
        pass

    with pytest.raises(AttributeError, match="internals"):
        run(text, told, f=lambda: 0, module=math, Name=Name)
    assert len(told) == 1
