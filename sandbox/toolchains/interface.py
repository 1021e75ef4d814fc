"""The C ABI of a kernel library as it goes from the compiler to bindings.py: a record in JSON."""

from __future__ import annotations

import dataclasses
import json
from dataclasses import dataclass


class PrototypeError(ValueError):
    """A kernel's signature that has no binding; the message names the file, the line and the allowed types."""


@dataclass(frozen=True, slots=True)
class Parameter:
    name: str
    dtype: str
    """Name of a torch dtype; `void` is any dtype and only with `pointer`."""
    pointer: bool


@dataclass(frozen=True, slots=True)
class Prototype:
    name: str
    result: str
    parameters: list[Parameter]


@dataclass(frozen=True, slots=True)
class Interface:
    """What bindings.py makes a module from."""

    module: str
    device: str
    """Where the tensors behind pointers lie: `cpu` or `cuda`."""
    functions: list[Prototype]


def interface_of(prototypes: list[Prototype], exported: set[str], module: str, *, device: str = "cpu") -> str:
    """The interface as JSON: the prototypes that the compiled object exports.

    Raises PrototypeError where none is left or where two definitions of one name disagree.
    """
    chosen: dict[str, Prototype] = {}
    for prototype in prototypes:
        if prototype.name not in exported:
            continue
        if chosen.setdefault(prototype.name, prototype) != prototype:
            raise PrototypeError(f"{prototype.name}: two definitions with different parameters; keep one")
    if not chosen:
        raise PrototypeError(
            "kernels/ defines no function with C linkage; write the kernel as "
            'extern "C" void name(const float* x, float* y, int64_t n) { … }'
        )
    functions = [dataclasses.asdict(prototype) for prototype in chosen.values()]
    return json.dumps({"module": module, "device": device, "functions": functions}, separators=(",", ":"))


def read_interface(interface: str) -> Interface:
    """The interface written by interface_of."""
    record = json.loads(interface)
    functions = [
        Prototype(
            name=entry["name"],
            result=entry["result"],
            parameters=[Parameter(**parameter) for parameter in entry["parameters"]],
        )
        for entry in record["functions"]
    ]
    return Interface(record["module"], record.get("device", "cpu"), functions)  # older ones know no other device
