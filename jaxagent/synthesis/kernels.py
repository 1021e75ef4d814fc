"""The demo's little language: programs over rows of a matrix, as a torch module, a C kernel, and a NumPy function.

Every program maps x [rows, cols] step by step. A step is one line of `Model.forward` and one line of the kernel, and
the kernel quotes the former before the latter: a small decoder learns to copy, and then to translate line by line.
What separates a fast kernel from a slow one is its frame (`Style`), not its steps.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum

import numpy as np

Array = np.ndarray


class Style(StrEnum):
    """How a kernel is framed, from best to worst. The reward of each is measured, see docs of the demo."""

    VECTOR_PARALLEL = "vector_parallel"
    VECTOR_SERIAL = "vector_serial"
    SCALAR_PARALLEL = "scalar_parallel"
    SCALAR_SERIAL = "scalar_serial"

    @property
    def is_vector(self) -> bool:
        return self in (Style.VECTOR_PARALLEL, Style.VECTOR_SERIAL)

    @property
    def is_parallel(self) -> bool:
        return self in (Style.VECTOR_PARALLEL, Style.SCALAR_PARALLEL)


@dataclass(frozen=True, slots=True)
class Op:
    """One operator: `{c}` in its lines is the step's constant."""

    name: str
    torch: str
    """Right side of `x = …` in Model.forward."""
    kernel: str
    """Statements over one row `v[0…C)`; `s` is a spare scalar."""
    apply: Callable[[Array, float, Array], Array]
    """The same in NumPy on (x [rows, cols], constant, weight [cols])."""
    constants: tuple[str, ...] = ()
    is_heavy: bool = False
    """Transcendental, and slower in torch's own vector code than in libmvec: where a kernel wins clearly."""
    over_row: bool = False
    reduces: bool = False


def _softplus(x: Array) -> Array:
    return np.logaddexp(x, 0.0)


def _sigmoid(x: Array) -> Array:
    return 1.0 / (1.0 + np.exp(-x))


def _mean(x: Array) -> Array:
    return x.mean(axis=-1, keepdims=True)


def _softmax(x: Array) -> Array:
    weights = np.exp(x - x.max(axis=-1, keepdims=True))
    return weights / weights.sum(axis=-1, keepdims=True)


def _rms(x: Array) -> Array:
    return np.sqrt(_mean(x * x) + 1e-5)


_EACH = "EACH v[j] = "
_RMS = "s = sqrtf(SUM(v[j] * v[j]) / C + 1e-5f); EACH v[j] /= s;"

_ALL_OPS = (
    Op("relu", "torch.relu(x)", _EACH + "v[j] > 0 ? v[j] : 0;", lambda x, c, w: np.maximum(x, 0.0)),
    Op("abs", "torch.abs(x)", _EACH + "fabsf(v[j]);", lambda x, c, w: np.abs(x)),
    Op("square", "torch.square(x)", _EACH + "v[j] * v[j];", lambda x, c, w: x * x),
    Op("scale", "x * {c}", _EACH + "v[j] * {c}f;", lambda x, c, w: x * c, ("0.5", "1.5", "2.5")),
    Op("shift", "x + {c}", _EACH + "v[j] + {c}f;", lambda x, c, w: x + c, ("0.5", "1.5", "2.5")),
    Op("weight", "x * self.weight", _EACH + "v[j] * w[j];", lambda x, c, w: x * w),
    Op("sigmoid", "torch.sigmoid(x)", _EACH + "1 / (1 + expf(-v[j]));", lambda x, c, w: _sigmoid(x)),
    Op("silu", "F.silu(x)", _EACH + "v[j] / (1 + expf(-v[j]));", lambda x, c, w: x * _sigmoid(x)),
    Op("tanh", "torch.tanh(x)", _EACH + "tanhf(v[j]);", lambda x, c, w: np.tanh(x), is_heavy=True),
    Op("atan", "torch.atan(x)", _EACH + "atanf(v[j]);", lambda x, c, w: np.arctan(x), is_heavy=True),
    Op("softplus", "F.softplus(x)", _EACH + "log1pf(expf(v[j]));", lambda x, c, w: _softplus(x), is_heavy=True),
    Op("mish", "F.mish(x)", _EACH + "v[j] * tanhf(log1pf(expf(v[j])));",
       lambda x, c, w: x * np.tanh(_softplus(x)), is_heavy=True),
    Op("log1p", "torch.log1p(torch.abs(x))", _EACH + "log1pf(fabsf(v[j]));",
       lambda x, c, w: np.log1p(np.abs(x)), is_heavy=True),
    Op("softmax", "torch.softmax(x, dim=-1)",
       "s = MAX(v[j]); EACH v[j] = expf(v[j] - s); s = SUM(v[j]); EACH v[j] /= s;",
       lambda x, c, w: _softmax(x), over_row=True),
    Op("center", "x - x.mean(dim=-1, keepdim=True)", "s = SUM(v[j]) / C; EACH v[j] -= s;",
       lambda x, c, w: x - _mean(x), over_row=True),
    Op("rms_norm", "F.rms_norm(x, x.shape[-1:], eps=1e-5)", _RMS, lambda x, c, w: x / _rms(x), over_row=True),
    Op("layer_norm", "F.layer_norm(x, x.shape[-1:])", "s = SUM(v[j]) / C; EACH v[j] -= s; " + _RMS,
       lambda x, c, w: (x - _mean(x)) / _rms(x - _mean(x)), over_row=True),
    Op("mean", "x.mean(dim=-1)", "y[i] = SUM(v[j]) / C;", lambda x, c, w: _mean(x), over_row=True, reduces=True),
    Op("amax", "x.amax(dim=-1)", "y[i] = MAX(v[j]);", lambda x, c, w: x.max(axis=-1, keepdims=True),
       over_row=True, reduces=True),
    Op("norm", "x.norm(dim=-1)", "y[i] = sqrtf(SUM(v[j] * v[j]));",
       lambda x, c, w: np.sqrt((x * x).sum(axis=-1, keepdims=True)), over_row=True, reduces=True),
)  # fmt: skip
OPS = {op.name: op for op in _ALL_OPS}


@dataclass(frozen=True, slots=True)
class Step:
    op: str
    constant: str | None = None

    @property
    def torch_line(self) -> str:
        return "x = " + OPS[self.op].torch.replace("{c}", self.constant or "")

    @property
    def kernel_line(self) -> str:
        return OPS[self.op].kernel.replace("{c}", self.constant or "")


Steps = tuple[Step, ...]


@dataclass(frozen=True, slots=True)
class Program:
    steps: Steps
    rows: int
    cols: int

    @property
    def has_weight(self) -> bool:
        return any(step.op == "weight" for step in self.steps)

    @property
    def reduces(self) -> bool:
        return bool(self.steps) and OPS[self.steps[-1].op].reduces


def evaluate(steps: Steps, x: Array, weight: Array) -> Array:
    """The steps in the dtype of x [rows, cols] and weight [cols]: -> [rows, cols], or [rows, 1] if they reduce."""
    for step in steps:
        x = OPS[step.op].apply(x, float(step.constant or 0.0), weight)
    return x


def model_source(program: Program) -> str:
    """The task: a module in KernelBench form."""
    lines = ["import torch", "import torch.nn as nn"]
    if any("F." in step.torch_line for step in program.steps):
        lines.append("import torch.nn.functional as F")
    lines += ["", "", "class Model(nn.Module):", *_init_lines(program)]
    body = [f"        {step.torch_line}" for step in program.steps]
    lines += ["    def forward(self, x):", *body, "        return x"]
    lines += ["", "", "def get_inputs():", f"    return [torch.randn({program.rows}, {program.cols})]"]
    lines += ["", "", "def get_init_inputs():", f"    return [{program.cols if program.has_weight else ''}]"]
    return "\n".join(lines) + "\n"


def parse_model(text: str) -> Program:
    """Reads the program back from `model_source`, which may stand inside a longer text such as a prompt.

    Raises ValueError with the line that is not of this language.
    """
    shape = re.search(r"torch\.randn\((\d+), (\d+)\)", text)
    body = re.search(r"def forward\(self, x\):\n(.*?)\n *return x\b", text, re.DOTALL)
    if shape is None or body is None:
        raise ValueError("the text holds no synthetic model: forward(self, x) and torch.randn(rows, cols) are needed")
    lines = [line.strip() for line in body.group(1).splitlines()]
    steps = tuple(_parse_step(line) for line in lines if line and not line.startswith("#"))
    return Program(steps, int(shape.group(1)), int(shape.group(2)))


def _parse_step(line: str) -> Step:
    for op in OPS.values():
        pattern = re.escape("x = " + op.torch).replace(re.escape("{c}"), r"([0-9.]+)")
        match = re.fullmatch(pattern, line)
        if match is not None:
            return Step(op.name, match.group(1) if op.constants else None)
    raise ValueError(f"no operator of the synthetic tasks is written {line!r}; operators: {', '.join(OPS)}")


def model_new_source(program: Program) -> str:
    """ModelNew: allocates the output and calls the kernel."""
    weight = "self.weight, " if program.has_weight else ""
    output = "torch.empty(x.shape[0])" if program.reduces else "torch.empty_like(x)"
    lines = ["import torch", "import torch.nn as nn", "import cpp_kernels", "", ""]
    lines += ["class ModelNew(nn.Module):", *_init_lines(program), "    def forward(self, x):"]
    lines.append(f"        y = {output}")
    lines += [f"        cpp_kernels.run(x, {weight}y, x.shape[0], x.shape[1])", "        return y"]
    return "\n".join(lines) + "\n"


def _init_lines(program: Program) -> list[str]:
    if not program.has_weight:
        return []
    return [
        "    def __init__(self, cols):",
        "        super().__init__()",
        "        self.weight = nn.Parameter(torch.rand(cols) + 0.5)",
        "",
    ]


_VECTOR_FRAME = (
    '#define VEC _Pragma("omp declare simd notinbranch") extern "C" float',
    "VEC expf(float); VEC log1pf(float); VEC tanhf(float); VEC atanf(float);",
    'extern "C" float sqrtf(float), fabsf(float);',
    "#define LOOP(how) _Pragma(how) for (int j = 0; j < C; j++)",
    '#define EACH LOOP("omp simd")',
    '#define SUM(e) ({ float t = 0; LOOP("omp simd reduction(+:t)") t += e; t; })',
    '#define MAX(e) ({ float t = -1e38f; LOOP("omp simd reduction(max:t)") t = e > t ? e : t; t; })',
)
_SCALAR_FRAME = (
    'extern "C" float expf(float), log1pf(float), tanhf(float), atanf(float), sqrtf(float), fabsf(float);',
    "#define EACH for (int j = 0; j < C; j++)",
    "#define SUM(e) ({ float t = 0; EACH t += e; t; })",
    "#define MAX(e) ({ float t = -1e38f; EACH t = e > t ? e : t; t; })",
)


def kernel_source(program: Program, style: Style, steps: Steps | None = None) -> str:
    """kernels/kernel.cpp, or with `steps` a faulty one that does these instead and keeps the program's interface.

    Vector styles call libm's SIMD variants (`declare simd`), which g++ otherwise leaves alone.
    """
    weight = "const float* w, " if program.has_weight else ""
    lines: list[str] = [*(_VECTOR_FRAME if style.is_vector else _SCALAR_FRAME)]
    lines.append(f'extern "C" void run(const float* x, {weight}float* y, int R, int C) {{')
    if style.is_parallel:
        lines.append("#pragma omp parallel for")
    lines += ["for (int i = 0; i < R; i++) {", "float v[C], s;", "EACH v[j] = x[i * C + j];"]
    for step in program.steps if steps is None else steps:
        lines += [f"// {step.torch_line}", step.kernel_line]
    if not program.reduces:
        lines += ["// return x", "EACH y[i * C + j] = v[j];"]
    return "\n".join([*lines, "}", "}"]) + "\n"
