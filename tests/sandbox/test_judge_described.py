"""What a candidate's process says of its outputs: the real thing passes, everything else is a ValueError."""

from __future__ import annotations

import copy
import json
from typing import Any

import pytest
import torch

from sandbox.judge.compare import compare_structure
from sandbox.judge.described import checked_outputs
from sandbox.judge.placement import leaf_of
from sandbox.judge.serving import describe


def said(value: Any) -> dict[str, Any]:
    """As it arrives: through JSON."""
    return json.loads(json.dumps(describe(value, leaf_of)))


def test_what_honest_processes_say_passes_unchanged() -> None:
    value = {"a": [torch.ones(2, 3), None, 3, 2.5, float("nan"), float("-inf")], "b": (True, "text", torch.float16)}
    one = said(value)
    [checked] = checked_outputs([one])
    assert checked["node"] == one["node"] and checked["plain"] is True
    for kept, leaf in zip(checked["leaves"], one["leaves"], strict=True):
        assert kept == {key: leaf[key] for key in ("dtype", "shape", "stride", "address")}


@pytest.mark.parametrize(
    "change",
    [
        lambda one: one.pop("leaves"),
        lambda one: one.update(node=None),
        lambda one: one["node"].update(value=7),
        lambda one: one["node"].update(value=True),
        lambda one: one["node"].update(kind="slice"),
        lambda one: one["node"].update(kind=["list"]),
        lambda one: one["node"].update(kind="dict", value=[["k"]]),
        lambda one: one["node"].update(kind="float", value="soon"),
        lambda one: one["node"].update(kind="float", value=[1]),
        lambda one: one["leaves"][0].update(address="0"),
        lambda one: one["leaves"][0].update(address=-8),
        lambda one: one["leaves"][0].update(address=1 << 70),
        lambda one: one["leaves"][0].update(device_address="x"),
        lambda one: one["leaves"][0].update(shape=[2, 1.5]),
        lambda one: one["leaves"][0].update(shape=[True] * 2),
        lambda one: one["leaves"][0].update(stride=[1] * 100),
        lambda one: one["leaves"][0].update(dtype=["float32"]),
        lambda one: one["leaves"].append(3),
    ],
)
def test_anything_else_is_refused(change) -> None:
    one = said(torch.ones(2, 3))
    change(one)
    with pytest.raises(ValueError, match="protocol|float"):
        checked_outputs([one])


def test_depth_and_numbers_are_bounded() -> None:
    nested: Any = {"kind": "none", "value": None}
    for _ in range(60):
        nested = {"kind": "list", "value": [nested]}
    with pytest.raises(ValueError):
        checked_outputs([{"node": nested, "leaves": [], "plain": True}])
    for outputs in (None, {}, "x", [None], [[]]):
        with pytest.raises(ValueError):
            checked_outputs(outputs)
    [huge] = checked_outputs([{"node": {"kind": "int", "value": 10**400}, "leaves": [], "plain": True}])
    assert (
        compare_structure({"kind": "int", "value": 3}, huge["node"]) == "output must be 3.0, got 9.223372036854776e+18"
    )


def test_a_subclass_is_not_made_plain_by_saying_so() -> None:
    one = copy.deepcopy(said(torch.ones(2)))
    for value in (1, "True", [True], None):
        one["plain"] = value
        assert checked_outputs([one])[0]["plain"] is False
