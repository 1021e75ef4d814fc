"""The same tasks and kernels in the layout of skill cuda_agent: one library of all kernels, and one of all wrong ones.

Every candidate has all kernels in its workdir and uses those of its task, so that bindings, which cost most, compile
once for all of them.
"""

from __future__ import annotations

import re
from collections.abc import Callable

from gpu_cases import CASES, HEAD, Case

from sandbox.types import Candidate

_LAUNCHER = re.compile(r'extern "C" cudaError_t (?P<name>\w+)\((?P<parameters>[^)]*)\)')
_INCLUDES = """#include <torch/types.h>
#include <torch/csrc/utils/pybind.h>
#include <cuda_runtime.h>
#include <c10/cuda/CUDAStream.h>
#include "../binding_registry.h"
"""
_SCALARS = {"int64_t": "int64_t", "int": "int64_t", "float": "double"}


def library(cases: list[Case], *, edit: Callable[[Case], str] = lambda case: case.kernel) -> dict[str, str]:
    """kernels/all.cu and its binding; `edit` makes a case's kernel."""
    kernels = [edit(case) for case in cases]
    launchers = [match for kernel in kernels for match in _LAUNCHER.finditer(kernel)]
    bound = "\n".join(f'  m.def("{match["name"]}", &{match["name"]}_on_tensors);' for match in launchers)
    binding = [_INCLUDES, *(_on_tensors(match["name"], match["parameters"]) for match in launchers)]
    binding.append(f"static void bind_all(pybind11::module& m) {{\n{bound}\n}}\nREGISTER_BINDING(all, bind_all);\n")
    return {"kernels/all.cu": HEAD + "\n".join(kernels), "kernels/all_binding.cpp": "\n".join(binding)}


def agent_candidate(case: Case, *, wrong: bool = False, forward: str | None = None) -> Candidate:
    model_new = case.candidate(forward=forward).files["model_new.py"]
    model_new = model_new.replace("import cuda_kernels as k", "import cuda_extension as k")
    return Candidate(files={"model_new.py": model_new} | (WRONG if wrong else RIGHT))


def _on_tensors(name: str, text: str) -> str:
    """A function on tensors that calls a launcher and throws where it fails."""
    parameters, arguments = [], []
    for parameter in text.replace("\n", " ").split(","):
        kind, _, label = parameter.strip().rpartition(" ")
        if kind.endswith("*"):
            pointed = kind.removesuffix("*").strip()
            parameters.append(f"const torch::Tensor& {label}")
            arguments.append(f"static_cast<{pointed}*>({label}.data_ptr())")
        elif kind == "cudaStream_t":
            arguments.append("c10::cuda::getCurrentCUDAStream()")
        else:
            parameters.append(f"{_SCALARS[kind]} {label}")
            arguments.append(f"static_cast<{kind}>({label})")
    return f"""extern "C" cudaError_t {name}({text});
static void {name}_on_tensors({", ".join(parameters)}) {{
  const cudaError_t status = {name}({", ".join(arguments)});
  TORCH_CHECK(status == cudaSuccess, "{name}: ", cudaGetErrorString(status));
}}
"""


RIGHT = library(CASES)
WRONG = library(CASES, edit=lambda case: case.kernel.replace(case.right, case.wrong))
