"""Loads a compiled artifact as the module that model_new.py imports. Runs inside the candidate's process.

A `cpp` or `cuda` artifact becomes a module of ctypes functions made from its interface: tensors are checked and passed
as pointers, numbers as scalars, torch's current stream by itself. The artifact of a `*_agent` skill is an extension
module already.
"""

from __future__ import annotations

import ctypes
import importlib.machinery
import importlib.util
import keyword
import numbers
import types
from collections.abc import Callable
from pathlib import Path
from typing import Any

from sandbox.toolchains.interface import Parameter, Prototype, read_interface

_CTYPES: dict[str, Any] = {
    "int8": ctypes.c_int8,
    "int16": ctypes.c_int16,
    "int32": ctypes.c_int32,
    "int64": ctypes.c_int64,
    "uint8": ctypes.c_uint8,
    "uint16": ctypes.c_uint16,
    "uint32": ctypes.c_uint32,
    "uint64": ctypes.c_uint64,
    "float32": ctypes.c_float,
    "float64": ctypes.c_double,
    "bool": ctypes.c_bool,
    "void": None,
    "stream": ctypes.c_void_p,
    "status": ctypes.c_int,
}
_BITS_OF = {"uint16": ("uint16", "float16", "bfloat16"), "int8": ("int8",), "uint8": ("uint8", "bool")}
"""Tensors of 16-bit floats may be taken as their bits, bools as bytes."""


def load_module(name: str, library: str | Path, interface: str) -> types.ModuleType:
    """The module `name` from the object `library`; the caller puts it into sys.modules.

    `interface` is Artifact.interface; "" means that the object is an extension module itself. Raises ImportError where
    the loader refuses the object, for example for a symbol that does not exist.
    """
    if interface:
        return _bound_module(name, library, interface)
    loader = importlib.machinery.ExtensionFileLoader(name, str(library))
    spec = importlib.util.spec_from_file_location(name, library, loader=loader)
    assert spec is not None
    module = importlib.util.module_from_spec(spec)
    loader.exec_module(module)
    return module


def _bound_module(name: str, library: str | Path, interface: str) -> types.ModuleType:
    declared = read_interface(interface)
    module = types.ModuleType(name, 'Kernels of this workdir, bound from their extern "C" prototypes.')
    try:
        handle = ctypes.CDLL(str(library))
    except OSError as error:
        raise ImportError(f"{name}: {error}") from error
    for prototype in declared.functions:
        setattr(module, prototype.name, _bind(getattr(handle, prototype.name), prototype, name, declared.device))
    return module


def _bind(function: Any, prototype: Prototype, module: str, device: str) -> Callable[..., Any]:
    """A function with the kernel's own parameter names, so that a wrong call reads like any other TypeError."""
    function.restype = _CTYPES[prototype.result]
    if prototype.result == "status":
        function.errcheck = _raise_for_status
    function.argtypes = [
        ctypes.c_void_p if parameter.pointer else _CTYPES[parameter.dtype] for parameter in prototype.parameters
    ]
    namespace: dict[str, Any] = {"_function": function, "_stream": _current_stream}
    names, arguments = [], []
    for index, parameter in enumerate(prototype.parameters):
        if parameter.dtype == "stream":
            arguments.append("_stream()")
            continue
        where = f"{module}.{prototype.name}: {parameter.name}"
        namespace[f"_convert{index}"] = (
            _pointer_converter(parameter, where, device) if parameter.pointer else _scalar_converter(parameter, where)
        )
        taken = keyword.iskeyword(parameter.name) or parameter.name.startswith(("_function", "_convert", "_stream"))
        name = f"{parameter.name}_" if taken else parameter.name
        names.append(name)
        arguments.append(f"_convert{index}({name})")
    source = f"def bound({', '.join(names)}):\n    return _function({', '.join(arguments)})\n"
    exec(compile(source, f"<{module}>", "exec"), namespace)
    bound = namespace["bound"]
    bound.__name__ = bound.__qualname__ = prototype.name
    bound.__module__ = module
    bound.__doc__ = _signature(prototype)
    return bound


def _current_stream() -> int:
    """cudaStream_t of torch's current stream on the current device."""
    import torch

    return torch._C._cuda_getCurrentRawStream(torch._C._cuda_getDevice())


def _raise_for_status(status: int, function: Any, arguments: Any) -> None:
    """A launcher that returns cudaError_t: what is not cudaSuccess is an exception."""
    if status:
        import torch

        raise RuntimeError(f"{function.__name__} returned cudaError_t {status}: {torch.cuda.CudaError(status)}")


def _pointer_converter(parameter: Parameter, where: str, device: str) -> Callable[[Any], int | None]:
    import torch

    names = _BITS_OF.get(parameter.dtype, (parameter.dtype,))
    dtypes = None if parameter.dtype == "void" else frozenset(getattr(torch, name) for name in names)
    tensor_type = torch.Tensor

    def convert(value: Any) -> int | None:
        if value is None:
            return None
        if not isinstance(value, tensor_type):
            raise TypeError(f"{where} is a pointer and takes a torch.Tensor or None, got {type(value).__name__}")
        if dtypes is not None and value.dtype not in dtypes:
            raise TypeError(f"{where} is {names[0]}* and takes a tensor of {' or '.join(names)}, got {value.dtype}")
        if value.device.type != device:
            raise TypeError(f"{where} takes a {device.upper()} tensor, got one on {value.device}")
        if not value.is_contiguous():
            raise TypeError(
                f"{where} takes a contiguous tensor, got strides {tuple(value.stride())} for shape "
                f"{tuple(value.shape)}; call .contiguous() first"
            )
        return value.data_ptr()

    return convert


def _scalar_converter(parameter: Parameter, where: str) -> Callable[[Any], Any]:
    if parameter.dtype in ("float32", "float64"):
        return _real_converter(where)
    bits = ctypes.sizeof(_CTYPES[parameter.dtype]) * 8
    low, high = (-(1 << (bits - 1)), 1 << (bits - 1)) if parameter.dtype.startswith("int") else (0, 1 << bits)

    def convert(value: Any) -> int:
        # bool, int and NumPy's integers; a float would lose its fraction without a word
        if not isinstance(value, numbers.Integral):
            raise TypeError(f"{where} is {parameter.dtype} and takes an int, got {type(value).__name__}")
        number = int(value)
        if not low <= number < high:
            raise OverflowError(f"{where} is {parameter.dtype} and cannot hold {number}")
        return number

    return convert


def _real_converter(where: str) -> Callable[[Any], float]:
    def convert(value: Any) -> float:
        if not isinstance(value, numbers.Real):
            raise TypeError(f"{where} takes a float or int, got {type(value).__name__}")
        return float(value)

    return convert


def _signature(prototype: Prototype) -> str:
    parameters = ", ".join(
        f"{parameter.dtype}{'*' if parameter.pointer else ''} {parameter.name}"
        for parameter in prototype.parameters
        if parameter.dtype != "stream"
    )
    return f"{prototype.result} {prototype.name}({parameters})"
