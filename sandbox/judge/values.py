"""Nested Python values as JSON nodes, their tensors apart: what get_inputs, get_init_inputs and forward return.

A node is {"kind": ..., "value": ...}; a tensor is {"kind": "tensor", "value": i}, i-th of the list of tensors that
goes with it. Tuples, named tuples and lists are all "seq" when compared; init inputs keep their own kind.
"""

from __future__ import annotations

import base64
from collections.abc import Callable
from typing import Any

MAX_DEPTH = 16
ITEMSIZE = {
    "float64": 8,
    "float32": 4,
    "float16": 2,
    "bfloat16": 2,
    "int64": 8,
    "int32": 4,
    "int16": 2,
    "int8": 1,
    "uint8": 1,
    "bool": 1,
    "complex64": 8,
    "complex128": 16,
}
"""Tensor types that are judged, and bytes of an element."""
FLOATS = ("float64", "float32", "float16", "bfloat16", "complex64", "complex128")


def flatten(value: Any, is_tensor: Callable[[Any], bool], tensors: list[Any], depth: int = 0) -> dict[str, Any]:
    """Node of `value`; its tensors are appended to `tensors`. Foreign types become kind "other"."""
    if depth > MAX_DEPTH:
        return {"kind": "other", "value": "a value nested too deeply"}
    if is_tensor(value):
        tensors.append(value)
        return {"kind": "tensor", "value": len(tensors) - 1}
    if value is None:
        return {"kind": "none", "value": None}
    for scalar in (bool, int, str):
        if type(value) is scalar:
            return {"kind": scalar.__name__, "value": value}
    if type(value) is float:
        return {"kind": "float", "value": repr(value)}
    if isinstance(value, (tuple, list)):
        items = [flatten(item, is_tensor, tensors, depth + 1) for item in value]
        return {"kind": "list" if isinstance(value, list) else "tuple", "value": items}
    if isinstance(value, dict):
        items = [[str(key), flatten(item, is_tensor, tensors, depth + 1)] for key, item in value.items()]
        return {"kind": "dict", "value": items}
    if type(value).__module__ == "torch" and type(value).__name__ == "dtype":
        return {"kind": "dtype", "value": str(value).removeprefix("torch.")}
    return {"kind": "other", "value": type(value).__name__}


def unflatten(node: dict[str, Any], tensors: list[Any]) -> Any:
    """The value of a node. Raises ValueError for kind "other"."""
    kind, value = node["kind"], node["value"]
    if kind == "tensor":
        return tensors[value]
    if kind == "none":
        return None
    if kind in ("bool", "int", "str"):
        return value
    if kind == "float":
        return float(value)
    if kind in ("list", "tuple"):
        items = [unflatten(item, tensors) for item in value]
        return items if kind == "list" else tuple(items)
    if kind == "dict":
        return {key: unflatten(item, tensors) for key, item in value}
    if kind == "dtype":
        import torch

        return getattr(torch, value)
    raise ValueError(
        f"a value of type {value!r} cannot cross to the candidate's process; "
        "use tensors, numbers, strings, lists, tuples and dicts"
    )


def pack_tensors(tensors: list[Any]) -> list[dict[str, Any]]:
    """Small tensors (of init inputs) inside a JSON message."""
    packed = []
    for tensor in tensors:
        tensor = tensor.detach().contiguous()
        packed.append(
            {
                "dtype": str(tensor.dtype).removeprefix("torch."),
                "shape": list(tensor.shape),
                "data": base64.b64encode(bytes(tensor.reshape(-1).view(_torch().uint8).numpy())).decode(),
            }
        )
    return packed


def unpack_tensors(packed: list[dict[str, Any]]) -> list[Any]:
    torch = _torch()
    tensors = []
    for item in packed:
        data = bytearray(base64.b64decode(item["data"]))
        flat = (
            torch.frombuffer(data, dtype=getattr(torch, item["dtype"]))
            if data
            else torch.empty(0, dtype=getattr(torch, item["dtype"]))
        )
        tensors.append(flat.reshape(item["shape"]))
    return tensors


def _torch() -> Any:
    import torch

    return torch
