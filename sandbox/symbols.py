"""What a compiled candidate may take from the libraries around it: allocation, metadata, views and copies of tensors.

The scan reads the undefined symbols of the object, so comments and strings cannot trip it, and work handed to another
thread or to a function below the dispatcher cannot hide from it.
"""

from __future__ import annotations

import re

from sandbox.elf import dynamic_symbols
from sandbox.skill import Skill
from sandbox.symbol_lists import (
    ALLOWED_ATEN,
    ALLOWED_PATHS,
    ATEN_OVERLOADS,
    CUBLAS,
    CUDA_LIBRARIES,
    CUDART,
    CUDNN,
    HOST_THREADS,
    LINKER,
    REFUSED_CXX,
    REFUSED_LIBC,
    REFUSED_PATHS,
    REFUSED_PYTHON,
    RUNTIMES,
    TORCH_NAMESPACES,
    TORCH_PYTHON,
)
from sandbox.types import Artifact


def check_symbols(skill: Skill, artifact: Artifact) -> str | None:
    """A refusal naming what the object takes from outside that it may not, or None.

    Raises ValueError where the artifact is no ELF object, which no compiler of ours produces.
    """
    symbols = dynamic_symbols(artifact.shared_object)
    problems = []
    for name, library in symbols.undefined.items():
        problem = _cuda_problem(name, library) if skill.toolchain == "cuda" else None
        if problem is None and not (skill.toolchain == "cuda" and _is_of_cuda(name, library)):
            problem = _problem(name, library, plain_abi=skill.plain_abi)
        if problem is not None:
            problems.append(problem)
    if not problems:
        return None
    more = f" (and {len(problems) - 3} more)" if len(problems) > 3 else ""
    return "refused: the kernels " + "; ".join(problems[:3]) + more


def _problem(name: str, library: str | None, *, plain_abi: bool) -> str | None:
    base = name.split("@")[0]
    if base in REFUSED_LIBC and library is not None:
        return f"call {base}, which {REFUSED_LIBC[base]}"
    if REFUSED_CXX.search(base):
        return f"use C++ file streams or std::filesystem ({base}); kernels do not open files"
    if library is not None:
        return None if RUNTIMES.match(library) else f"call {base} of {library}, which is no C, C++ or OpenMP runtime"
    if base in LINKER:
        return None
    if plain_abi:
        return (
            f"take {base} from outside; a kernel of this skill links to the C, C++ and OpenMP runtimes only, and "
            "does its own work"
        )
    return _extension_problem(base)


def _is_of_cuda(name: str, library: str | None) -> bool:
    """Judged by _cuda_problem alone. nvcc leaves a call of exit() where a device function's host body was."""
    return (library is not None and bool(CUDA_LIBRARIES.match(library))) or (name == "exit" and library is not None)


def _cuda_problem(name: str, library: str | None) -> str | None:
    if HOST_THREADS.match(name):
        return f"start host threads ({name}); a launcher only enqueues its work on the stream it is given"
    found = CUDA_LIBRARIES.match(library) if library is not None else None
    if found is None:
        return None
    allowed = CUDART if found[1] == "cudart" else CUBLAS if found[1].startswith("cublas") else CUDNN
    if allowed.fullmatch(name):
        return None
    what = {
        CUDART: "of the CUDA runtime, kernels may use launches, attributes, copies and scratch memory, on torch's "
        "current stream",
        CUBLAS: "of cuBLAS, only matrix products are allowed",
        CUDNN: "of cuDNN, only convolutions are allowed",
    }[allowed]
    return f"call {name}; {what}"


def _extension_problem(name: str) -> str | None:
    """For an unversioned symbol of an extension module: torch, Python, or unknown."""
    if name.startswith(("Py", "_Py")):
        return f"call {name}; kernels leave the interpreter alone" if REFUSED_PYTHON.match(name) else None
    if TORCH_PYTHON.match(name):
        return None
    if not name.startswith("_Z"):
        return f"call {name}, which belongs to no library that kernels may use"
    path = qualified_name(name)
    if path and path[0] == "pybind11":
        return None
    if path and path[0] in TORCH_NAMESPACES:
        return _torch_problem(path)
    if path and path[0] == "std" or re.match(r"_Z(T[ISVT])?N?K?S[tabsiod]", name):
        return None
    return f"take {'::'.join(path) or name} from outside, which is neither torch's nor the C++ runtime's"


def _torch_problem(path: list[str]) -> str | None:
    full = "::".join(path)
    if path[:2] == ["at", "_ops"]:
        operator = path[2] if len(path) > 2 else ""
        if _is_allowed_operator(operator):
            return None
        return f"call the torch operator {operator}; do that work in your own code"
    if any(full.startswith(prefix) for prefix in REFUSED_PATHS):
        return f"use {full}, which reaches operators past the record of what was called"
    if any(full.startswith(prefix) for prefix in ALLOWED_PATHS):
        return None
    return f"call {full}; of torch, kernels may use allocation, metadata, views and copies"


def _is_allowed_operator(operator: str) -> bool:
    """at::_ops structs are named base_overload (`empty_memory_format`, `slice_Tensor`, `copy_`)."""
    if operator in ALLOWED_ATEN:
        return True
    bases = [operator[:index] for index, character in enumerate(operator) if character == "_" and index > 0]
    return any(base in ALLOWED_ATEN and operator[len(base) + 1 :] in ATEN_OVERLOADS for base in bases)


def qualified_name(mangled: str) -> list[str]:
    """The nested name at the start of an Itanium-mangled symbol: `_ZNK2at10TensorBase4sizeEl` -> at, TensorBase, size.

    Stops at template arguments, operators and constructors; those never decide. [] for what has no plain name.
    """
    match = re.match(r"_Z(T[VTISWH]|GV|GR)?(?P<nested>N[rVK]*[RO]?)?(?P<std>St)?", mangled)
    if match is None:
        return []
    path = ["std"] if match["std"] else []
    position = match.end()
    while (length := re.compile(r"L?(\d+)").match(mangled, position)) is not None:
        end = length.end() + int(length[1])
        path.append(mangled[length.end() : end])
        position = end
        if not match["nested"]:
            break
        while (skipped := re.compile(r"B(\d+)").match(mangled, position)) is not None:  # abi tags
            position = skipped.end() + int(skipped[1])
        if mangled.startswith("I", position):
            break
    return path
