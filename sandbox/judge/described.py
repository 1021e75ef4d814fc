"""What a candidate's process says of its outputs, taken apart value by value before anything is done with it."""

from __future__ import annotations

import math
from typing import Any

from sandbox.judge.values import ITEMSIZE, MAX_DEPTH

_MAX_DIMENSIONS = 64
_MAX_NUMBER = 1 << 63
_SCALARS = {"bool": bool, "int": int, "str": str, "other": str, "dtype": str, "none": type(None)}


def checked_outputs(said: Any) -> list[dict[str, Any]]:
    """[{node, leaves, plain}] as serving.describe makes them, and nothing else. Raises ValueError."""
    return [_output(item) for item in _list(said)]


def _output(said: Any) -> dict[str, Any]:
    _require(isinstance(said, dict))
    leaves = [_leaf(leaf) for leaf in _list(said.get("leaves"))]
    return {"node": _node(said.get("node"), len(leaves)), "leaves": leaves, "plain": said.get("plain") is True}


def _node(said: Any, num_tensors: int, depth: int = 0) -> dict[str, Any]:
    _require(isinstance(said, dict) and depth <= MAX_DEPTH + 1)
    kind, value = _member(said, "kind"), _member(said, "value")
    if kind in ("list", "tuple"):
        return {"kind": kind, "value": [_node(item, num_tensors, depth + 1) for item in _list(value)]}
    if kind == "dict":
        items = [_list(item) for item in _list(value)]
        _require(all(len(item) == 2 and isinstance(item[0], str) for item in items))
        return {"kind": kind, "value": [[key, _node(item, num_tensors, depth + 1)] for key, item in items]}
    if kind == "tensor":
        _require(_is_integer(value) and 0 <= value < num_tensors)
    elif kind == "float":
        _require(isinstance(value, str) and not math.isnan(float(value)) or value == "nan")
    elif kind == "int":
        _require(type(value) is int)
        value = max(-_MAX_NUMBER, min(value, _MAX_NUMBER))  # beyond that no reference's answer lies
    else:
        _require(isinstance(kind, str) and kind in _SCALARS and type(value) is _SCALARS[kind])
    return {"kind": kind, "value": value}


def _leaf(said: Any) -> dict[str, Any]:
    _require(isinstance(said, dict))
    shape, stride, address = _list(said.get("shape")), _list(said.get("stride")), said.get("address")
    numbers = [*shape, *stride, address, *([said["device_address"]] if "device_address" in said else [])]
    _require(len(shape) <= _MAX_DIMENSIONS and len(stride) <= _MAX_DIMENSIONS)
    _require(all(_is_integer(number) and number >= 0 for number in numbers))
    dtype = said.get("dtype")
    _require(isinstance(dtype, str))
    leaf = {"dtype": dtype if dtype in ITEMSIZE else dtype[:40], "shape": shape, "stride": stride, "address": address}
    return leaf | ({"device_address": said["device_address"]} if "device_address" in said else {})


def _member(said: Any, name: str) -> Any:
    return said.get(name)


def _list(said: Any) -> list[Any]:
    _require(isinstance(said, list))
    return said


def _is_integer(value: Any) -> bool:
    return type(value) is int and abs(value) <= 2 * _MAX_NUMBER


def _require(condition: bool) -> None:
    if not condition:
        raise ValueError("the candidate's process does not keep to the protocol")
