from __future__ import annotations

import pytest

from sandbox.guard import check_source
from sandbox.skill import load_skill
from sandbox.types import Candidate

MODEL = """
from __future__ import annotations
import torch
from torch import nn
import cpp_kernels

class ModelNew(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.linear = nn.Linear(width, width)
        self.cache = {}

    def forward(self, input):
        y = torch.empty_like(input)
        cpp_kernels.relu(input, y, input.numel())
        return y
"""
KERNEL = """
#include <cstdint>
extern "C" void relu(const float* x, float* y, int64_t n) { for (int64_t i = 0; i < n; ++i) y[i] = x[i] > 0 ? x[i] : 0; }
"""
HONEST = {"model_new.py": MODEL, "kernels/relu.cpp": KERNEL}


def refusal(skill: str = "cpp", **changed: str) -> str | None:
    names = {"model": "model_new.py", "kernel": "kernels/relu.cpp", "header": "kernels/relu.h"}
    files = HONEST | {names[name]: text for name, text in changed.items()}
    return check_source(load_skill(skill), Candidate(files=files))


def in_forward(line: str) -> str:
    return MODEL.replace("        return y", f"        {line}\n        return y")


def test_an_honest_candidate_passes():
    assert refusal() is None


def test_words_in_comments_and_strings_decide_nothing():
    model = MODEL.replace(
        "        y =", '        """torch.compile, exec(), __globals__"""  # import os; sys.modules\n        y ='
    )
    kernel = KERNEL + '// #include <torch/extension.h>\n/* asm("syscall") */\nstatic const char* s = "asm(volatile)";\n'
    assert refusal(model=model, kernel=kernel) is None


@pytest.mark.parametrize(
    "line",
    [
        "import os",
        "import sys",
        "import ctypes",
        "import gc",
        "import subprocess",
        "import inspect",
        "import time",
        "import threading",
        "import numpy",
        "import model",
        "import torch.utils.cpp_extension",
        "import torch.nn.functional",
        "from torch.nn import functional",
        "from torch import _C",
        "from torch import compile",
        "from torch import ops",
        "from . import model",
        "from torch.nn import modules",
        "from torch import autograd",
        "from typing import get_type_hints",
        "from functools import singledispatch",
        "from dataclasses import sys",
        "from torch import *",
        "from os import path",
    ],
)
@pytest.mark.parametrize("place", ["top", "forward"])
def test_imports_outside_the_list_are_refused_at_any_depth(line, place):
    model = MODEL.replace("import torch\n", f"import torch\n{line}\n") if place == "top" else in_forward(line)
    assert "model_new.py:" in (refusal(model=model) or "")


@pytest.mark.parametrize(
    "line",
    [
        "import math",
        "import functools",
        "import itertools",
        "import enum",
        "import typing",
        "import dataclasses",
        "from collections import OrderedDict",
        "from collections.abc import Callable",
        "from torch import Tensor",
        "import torch.nn as layers",
    ],
)
def test_imports_on_the_list_pass(line):
    assert refusal(model=MODEL.replace("import torch\n", f"import torch\n{line}\n")) is None


@pytest.mark.parametrize(
    "line",
    [
        "exec('x')",
        "eval('x')",
        "open('/etc/passwd')",
        "__import__('os')",
        "globals()['x'] = 1",
        "torch.compile(self)",
        "torch.ops.aten.relu(input)",
        "torch._C._nn.gelu(input)",
        "torch.jit.script(self)",
        "torch.os.system('true')",
        "torch.library.Library('aten', 'IMPL')",
        "torch.manual_seed(0)",
        "torch.load('x')",
        "torch.softmax = None",
        "nn.Module.forward = None",
        "nn.functional.relu = None",
        "del torch.relu",
        "setattr(torch, 'relu', None)",
        "getattr(torch, 'o' + 's')",
        "getattr(torch, '_C')",
        "self.forward.__globals__",
        "getattr(self, '__dict__')",
        "().__class__.__base__.__subclasses__()",
        "t = torch",
        "(lambda t: t)(torch)",
        "t = nn.modules",
        "t = nn.modules.module",
        "f = getattr",
        "list(map(getattr, [input], ['_C']))",
        "getattr(input, 'o' + 's')",
        "k = type",
        "type('T', (), {})",
        "__annotations__ = {}",
        "nn.modules.module.torch.compile(self)",
        "input._evaluate()",
        "input._C",
        "frame.f_back",
        "y.__class__ = Lazy",
        "nn.modules.module.torch._C",
        "functools.update_wrapper(y, nn.Linear, assigned=['__dict__'])",
        "functools.wraps(y, ['__globals__'])",
        "functools.wraps(y, assigned=['__globals__'])",
        "copy_attributes = functools.wraps",
        "nn.modules.module.functools.update_wrapper(y, input)",
        "enum.global_enum(y)",
        "dataclasses.make_dataclass('T', ['a'])",
        "torch.UntypedStorage.from_file('/etc/passwd', False, 9)",
    ],
)
def test_reaching_past_tensors_is_refused(line):
    model = in_forward(line).replace(
        "import torch\n", "import dataclasses\nimport enum\nimport functools\nimport torch\n"
    )
    assert "model_new.py:" in (refusal(model=model) or ""), line


@pytest.mark.parametrize("pattern", ["object(__globals__=g)", "object(shape=s)", "Pair(a, b)", "[object(data=d)]"])
def test_patterns_may_not_take_attributes(pattern):
    assert "pattern" in (refusal(model=MODEL + f"\n\nmatch 1:\n    case {pattern}:\n        pass\n") or "")
    assert refusal(model=MODEL + "\n\nmatch (1, 2):\n    case int() | (1, 2) | torch.float32:\n        pass\n") is None


def test_wraps_is_for_decorators():
    for line in ("import functools\n", "from functools import wraps\n"):
        name = "functools.wraps" if "import functools" in line else "wraps"
        model = MODEL.replace("import torch\n", f"{line}import torch\n")
        assert (
            refusal(model=f"{model}\n\ndef twice(f):\n    @{name}(f)\n    def g(x):\n        return f(f(x))\n") is None
        )
        assert name in (refusal(model=f"{model}\n\n{name}(nn.Linear, ['__dict__'])\n") or "")


@pytest.mark.parametrize(
    "line",
    [
        "name = self.__class__.__name__",
        "scale = getattr(self, 'scale', 1.0)",
        "input = input.contiguous()",
        "self.cache[input.shape] = y",
        "y = y.view(-1).transpose(0, 0)",
        "w = self.linear.weight.detach()",
        "vector = [value for value in input.shape]",
        "y = torch.relu(y)",
        "w = getattr(self, f'weight_{3}')",
        "setattr(self, 'k' + str(2), 1)",
        "same = type(y) is torch.Tensor",
        "self.kernels = cpp_kernels",
        "half = getattr(torch, 'float16')",
        "p = nn.modules.linear.Linear(2, 2)",
        "e = torch.special.erf(y)",
        "y = torch.flatten(y)",
    ],
)
def test_honest_lines_pass_and_operators_are_left_to_the_judge(line):
    assert refusal(model=in_forward(line)) is None


@pytest.mark.parametrize(
    "method", ["load_state_dict", "_load_from_state_dict", "state_dict", "__torch_function__", "named_parameters"]
)
def test_overriding_what_the_judge_relies_on_is_refused(method):
    model = MODEL + f"\n    def {method}(self, *args, **kwargs):\n        return None\n"
    assert f"overrides {method}" in (refusal(model=model) or "")
    assert f"overrides {method}" in (refusal(model=MODEL + f"\n    {method} = None\n") or "")
    assert f"overrides {method}" in (refusal(model=MODEL + f"\n    {method}: object = None\n") or "")


def test_a_name_may_not_stand_for_a_module_before_or_instead_of_its_import():
    late = (
        MODEL.replace("import torch\n", "import torch\n\ndef early():\n    return late\n\n")
        + "\nimport torch as late\n"
    )
    assert "uses the module torch as a value" in (refusal(model=late) or "")
    disguised = in_forward("getattr(self, 'o' + 's')").replace(
        "import torch\n", "import torch\nimport torch as self\n", 1
    )
    assert refusal(model=disguised)


def test_every_module_within_reach_of_torch_is_known_as_one():
    """What is no value to a model has to be named as a module, whatever torch is installed."""
    import types

    import torch
    import torch.onnx  # torch loads it late

    for root, path in ((torch, "torch"), (torch.nn, "torch.nn"), (torch.nn.modules, "torch.nn.modules")):
        for name, value in vars(root).items():
            if isinstance(value, types.ModuleType) and f"{path}.{name}" != "torch.nn":
                assert refusal(model=in_forward(f"t = {path}.{name}")), f"{path}.{name}"


def test_a_missing_model_class_or_extension_is_refused():
    assert "no class ModelNew" in (refusal(model=MODEL.replace("ModelNew", "Other")) or "")
    without = MODEL.replace("import cpp_kernels\n", "").replace("cpp_kernels.relu(input, y, input.numel())", "pass")
    assert "does not import cpp_kernels" in (refusal(model=without) or "")
    assert "is not Python" in (refusal(model="class ModelNew(:") or "")


def test_absent_files_are_refused_with_their_reason():
    skill = load_skill("cpp")
    linked = Candidate(files={"kernels/relu.cpp": KERNEL}, omitted={"model_new.py": "is a link"})
    assert "model_new.py is a link" in (check_source(skill, linked) or "")
    no_kernel = Candidate(files={"model_new.py": MODEL}, omitted={"kernels/relu.cpp": "is larger than 256 KiB"})
    assert "kernels/relu.cpp is larger" in (check_source(skill, no_kernel) or "")
    only_header = Candidate(files={"model_new.py": MODEL, "kernels/relu.h": KERNEL})
    assert "no .cpp file" in (check_source(skill, only_header) or "")


@pytest.mark.parametrize(
    "line",
    [
        "#include <torch/extension.h>",
        "#include <cblas.h>",
        '#include "/etc/passwd"',
        '#include "../../secret.h"',
        "#  include <dlfcn.h>",
        "#include <sys/mman.h>",
        "%:include <unistd.h>",
        "#include HEADER",
        "#inclu\\\nde <dlfcn.h>",
        "/* x */ #include <dlfcn.h>",
        '#import "missing.h"',
    ],
)
def test_includes_outside_the_list_are_refused_with_their_line(line):
    assert "kernels/relu.cpp:1: includes" in (refusal(kernel=line + "\n" + KERNEL) or "")


def test_own_headers_and_the_agents_headers_pass():
    assert (
        refusal(
            kernel='#include "relu.h"\n#include <immintrin.h>\n#include <omp.h>\n' + KERNEL, header="#pragma once\n"
        )
        is None
    )
    agent = MODEL.replace("cpp_kernels", "cpu_extension")
    kernel = '#include <torch/types.h>\n#include <torch/csrc/utils/pybind.h>\n#include "../binding_registry.h"\n'
    assert refusal("cpp_agent", model=agent, kernel=kernel) is None
    assert "includes torch/types.h" in (refusal("cpp", kernel=kernel) or "")
    assert "includes torch/../../x" in (refusal("cpp_agent", model=agent, kernel="#include <torch/../../x>\n") or "")


@pytest.mark.parametrize(
    "code",
    [
        'void f() { asm("nop"); }',
        'void f() { __asm__ volatile ("nop"); }',
        'void f() { __asm("nop"); }',
        "char c = u8'\"'; void f() { asm(\"nop\"); } char d = '\"';",
        'auto s = R"(x)"; void f() { asm("nop"); }',
        "int n = 1'000; void f() { asm(\"nop\"); } int m = 1'000;",
    ],
)
def test_inline_assembly_is_refused(code):
    assert "inline assembly" in (refusal(kernel=KERNEL + code) or "")


def test_tokens_may_not_be_pasted_into_what_the_scan_cannot_see():
    assert "pastes tokens" in (
        refusal(kernel=KERNEL + '#define JOIN(a, b) a##b\nvoid f() { JOIN(a, sm)("nop"); }') or ""
    )


@pytest.mark.parametrize("name", ["kernels/../model.cpp", "kernels/deeper/k.cpp", "kernels/-o.cpp", "kernels/a b.cpp"])
def test_file_names_outside_the_pattern_are_refused(name):
    files = HONEST | {name: KERNEL}
    assert "is no name for a kernel" in (check_source(load_skill("cpp"), Candidate(files=files)) or "")


CUDA_MODEL = MODEL.replace("cpp_kernels", "cuda_kernels")
CUDA_KERNEL = """
#include <cuda_runtime.h>
#include <cooperative_groups.h>
__global__ void relu_kernel(const float* x, float* y) { asm volatile("// fine here"); y[0] = x[0]; }
extern "C" void relu(const float* x, float* y, cudaStream_t stream) { relu_kernel<<<1, 1, 0, stream>>>(x, y); }
"""
BINDING = '#include <torch/types.h>\n#include "../binding_registry.h"\n'


def cuda_refusal(skill: str = "cuda", model: str = CUDA_MODEL, **kernels: str) -> str | None:
    """`kernels` by name, with `_cu`, `_cuh`, `_cpp` for the dot."""
    files = {"k_cu": CUDA_KERNEL} | kernels
    named = {f"kernels/{name.replace('_', '.')}": text for name, text in files.items()}
    module = {"cuda": "cuda_kernels", "cuda_agent": "cuda_extension"}[skill]
    model = model.replace("cuda_kernels", module)
    return check_source(load_skill(skill), Candidate(files=named | {"model_new.py": model}))


def test_an_honest_cuda_candidate_passes():
    assert cuda_refusal() is None
    assert cuda_refusal("cuda_agent", b_cpp=BINDING) is None


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("torch.cuda.set_stream(None)", "uses torch.cuda"),
        ("graph = torch.cuda.CUDAGraph()", "uses torch.cuda"),
        ("torch.backends.cuda.matmul.allow_tf32 = True", "assigns to torch.backends"),
    ],
)
def test_streams_graphs_and_settings_of_the_gpu_are_refused_in_python(line, words):
    model = CUDA_MODEL.replace("        return y", f"        {line}\n        return y")
    assert words in (cuda_refusal(model=model) or "")


def test_each_kind_of_cuda_file_has_its_own_headers():
    assert "belong into kernels/*_binding.cpp" in (cuda_refusal("cuda_agent", k_cu=BINDING + CUDA_KERNEL) or "")
    assert "plain C ABI without torch headers" in (cuda_refusal(k_cu=BINDING + CUDA_KERNEL) or "")
    assert "includes device.cuh" in (
        cuda_refusal("cuda_agent", b_cpp=BINDING + '#include "device.cuh"\n', device_cuh="#pragma once\n") or ""
    )
    assert cuda_refusal(device_cuh="#pragma once\n", k_cu='#include "device.cuh"\n' + CUDA_KERNEL) is None
    assert "is no name for a kernel; allowed: kernels/NAME with one of .cu .cuh" in (cuda_refusal(b_cpp="int a;") or "")


def test_assembly_is_for_device_code_alone():
    host = 'int f() { asm("nop"); return 0; }\n'
    assert "inline assembly" in (cuda_refusal("cuda_agent", b_cpp=BINDING + host) or "")
    assert "inline assembly" in (cuda_refusal("cuda_agent", b_cpp=BINDING, shared_h=host) or "")
    assert "#line" in (cuda_refusal(k_cu='#line 1 "stdio.h"\n' + CUDA_KERNEL) or "")
