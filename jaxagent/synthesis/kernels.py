"""A little language: programs over rows of a matrix, as a torch module, lines of a kernel, and a NumPy function.

Every program maps x [rows, cols] step by step. A step is one line of `Model.forward` and one line of the kernel, in C++
and in CUDA the same. What separates a fast kernel from a slow one is its frame (jaxagent/synthesis/frames.py).
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import scipy.special

Array = np.ndarray


@dataclass(frozen=True, slots=True)
class Operands:
    """What a step may read beside x: parameters of the module, both [cols], and the program's input."""

    weight: Array
    bias: Array
    input: Array


@dataclass(frozen=True, slots=True)
class Op:
    """One operator: `{c}` in its lines is the step's constant."""

    name: str
    torch: str
    """Right side of `x = …` in Model.forward."""
    kernel: str
    """Statements over one row `v[0…C)`; `s` is a spare scalar, and `w`, `b` and `r` are the Operands' rows."""
    apply: Callable[[Array, float, Operands], Array]
    """The same in NumPy on (x [rows, cols], constant, operands)."""
    constants: tuple[str, ...] = ()
    is_heavy: bool = False
    """Transcendental, and slower in torch's own vector code than in libmvec: where a kernel wins clearly."""
    over_row: bool = False
    reduces: bool = False
    only_cuda: bool = False
    """No task for a CPU has it."""


def _softplus(x: Array) -> Array:
    return np.logaddexp(x, 0.0)


def _sigmoid(x: Array) -> Array:
    return 1.0 / (1.0 + np.exp(-x))


def _mean(x: Array) -> Array:
    return x.mean(axis=-1, keepdims=True)


def _softmax(x: Array) -> Array:
    weights = np.exp(x - x.max(axis=-1, keepdims=True))
    return weights / weights.sum(axis=-1, keepdims=True)


def _erf(x: Array) -> Array:
    return scipy.special.erf(x)


def _log_softmax(x: Array) -> Array:
    x = x - x.max(axis=-1, keepdims=True)
    return x - np.log(np.exp(x).sum(axis=-1, keepdims=True))


def _rms(x: Array) -> Array:
    return np.sqrt(_mean(x * x) + 1e-5)


_EACH = "EACH v[j] = "
_RMS = "s = sqrtf(SUM(v[j] * v[j]) / C + 1e-5f); EACH v[j] /= s;"

_ALL_OPS = (
    Op("relu", "torch.relu(x)", _EACH + "v[j] > 0 ? v[j] : 0;", lambda x, c, o: np.maximum(x, 0.0)),
    Op("abs", "torch.abs(x)", _EACH + "fabsf(v[j]);", lambda x, c, o: np.abs(x)),
    Op("square", "torch.square(x)", _EACH + "v[j] * v[j];", lambda x, c, o: x * x),
    Op("scale", "x * {c}", _EACH + "v[j] * {c}f;", lambda x, c, o: x * c, ("0.5", "1.5", "2.5")),
    Op("shift", "x + {c}", _EACH + "v[j] + {c}f;", lambda x, c, o: x + c, ("0.5", "1.5", "2.5")),
    Op("weight", "x * self.weight", _EACH + "v[j] * w[j];", lambda x, c, o: x * o.weight),
    Op("sigmoid", "torch.sigmoid(x)", _EACH + "1 / (1 + expf(-v[j]));", lambda x, c, o: _sigmoid(x)),
    Op("silu", "F.silu(x)", _EACH + "v[j] / (1 + expf(-v[j]));", lambda x, c, o: x * _sigmoid(x)),
    Op("tanh", "torch.tanh(x)", _EACH + "tanhf(v[j]);", lambda x, c, o: np.tanh(x), is_heavy=True),
    Op("atan", "torch.atan(x)", _EACH + "atanf(v[j]);", lambda x, c, o: np.arctan(x), is_heavy=True),
    Op("softplus", "F.softplus(x)", _EACH + "log1pf(expf(v[j]));", lambda x, c, o: _softplus(x), is_heavy=True),
    Op("mish", "F.mish(x)", _EACH + "v[j] * tanhf(log1pf(expf(v[j])));",
       lambda x, c, o: x * np.tanh(_softplus(x)), is_heavy=True),
    Op("log1p", "torch.log1p(torch.abs(x))", _EACH + "log1pf(fabsf(v[j]));",
       lambda x, c, o: np.log1p(np.abs(x)), is_heavy=True),
    Op("softmax", "torch.softmax(x, dim=-1)",
       "s = MAX(v[j]); EACH v[j] = expf(v[j] - s); s = SUM(v[j]); EACH v[j] /= s;",
       lambda x, c, o: _softmax(x), over_row=True),
    Op("center", "x - x.mean(dim=-1, keepdim=True)", "s = SUM(v[j]) / C; EACH v[j] -= s;",
       lambda x, c, o: x - _mean(x), over_row=True),
    Op("rms_norm", "F.rms_norm(x, x.shape[-1:], eps=1e-5)", _RMS, lambda x, c, o: x / _rms(x), over_row=True),
    Op("layer_norm", "F.layer_norm(x, x.shape[-1:])", "s = SUM(v[j]) / C; EACH v[j] -= s; " + _RMS,
       lambda x, c, o: (x - _mean(x)) / _rms(x - _mean(x)), over_row=True),
    Op("mean", "x.mean(dim=-1)", "y[i] = SUM(v[j]) / C;", lambda x, c, o: _mean(x), over_row=True, reduces=True),
    Op("amax", "x.amax(dim=-1)", "y[i] = MAX(v[j]);", lambda x, c, o: x.max(axis=-1, keepdims=True),
       over_row=True, reduces=True),
    Op("norm", "x.norm(dim=-1)", "y[i] = sqrtf(SUM(v[j] * v[j]));",
       lambda x, c, o: np.sqrt((x * x).sum(axis=-1, keepdims=True)), over_row=True, reduces=True),
    Op("gelu", "F.gelu(x)", _EACH + "v[j] * 0.5f * (1 + erff(v[j] * 0.70710678f));",
       lambda x, c, o: x * 0.5 * (1.0 + _erf(x * 0.5**0.5)), is_heavy=True, only_cuda=True),
    Op("bias", "x + self.bias", _EACH + "v[j] + b[j];", lambda x, c, o: x + o.bias, only_cuda=True),
    Op("residual", "x + x0", _EACH + "v[j] + r[j];", lambda x, c, o: x + o.input, only_cuda=True),
    Op("log_softmax", "torch.log_softmax(x, dim=-1)",
       "s = MAX(v[j]); EACH v[j] -= s; s = logf(SUM(expf(v[j]))); EACH v[j] -= s;",
       lambda x, c, o: _log_softmax(x), over_row=True, only_cuda=True),
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

    def has(self, op: str) -> bool:
        return any(step.op == op for step in self.steps)

    @property
    def parameters(self) -> list[str]:
        """Names of the module's parameters, each [cols], in the order of the kernel's arguments."""
        return [name for name in ("weight", "bias") if self.has(name)]

    @property
    def reduces(self) -> bool:
        return bool(self.steps) and OPS[self.steps[-1].op].reduces


def evaluate(steps: Steps, x: Array, weight: Array, bias: Array | None = None) -> Array:
    """The steps in the dtype of x [rows, cols], weight and bias [cols]: -> [rows, cols]; [rows, 1] if they reduce."""
    operands = Operands(weight, np.zeros_like(weight) if bias is None else bias, x)
    for step in steps:
        x = OPS[step.op].apply(x, float(step.constant or 0.0), operands)
    return x


_KEEP_INPUT = "        x0 = x"


def model_source(program: Program) -> str:
    """The task: a module in KernelBench form."""
    lines = ["import torch", "import torch.nn as nn"]
    if any("F." in step.torch_line for step in program.steps):
        lines.append("import torch.nn.functional as F")
    lines += ["", "", "class Model(nn.Module):", *init_lines(program)]
    body = [_KEEP_INPUT] if program.has("residual") else []
    body += [f"        {step.torch_line}" for step in program.steps]
    lines += ["    def forward(self, x):", *body, "        return x"]
    lines += ["", "", "def get_inputs():", f"    return [torch.randn({program.rows}, {program.cols})]"]
    lines += ["", "", "def get_init_inputs():", f"    return [{program.cols if program.parameters else ''}]"]
    return "\n".join(lines) + "\n"


def parse_model(text: str) -> Program:
    """Reads the program back from `model_source`, which may stand inside a longer text such as a prompt.

    Raises ValueError with the line that is not of this language.
    """
    shape = re.search(r"torch\.randn\((\d+), (\d+)\)", text)
    body = re.search(r"def forward\(self, x\):\n(.*?)\n *return x\b", text, re.DOTALL)
    if shape is None or body is None:
        raise ValueError("the text holds no synthetic model: forward(self, x) and torch.randn(rows, cols) are needed")
    lines = [line.strip() for line in body.group(1).splitlines() if line != _KEEP_INPUT]
    steps = tuple(_parse_step(line) for line in lines if line and not line.startswith("#"))
    return Program(steps, int(shape.group(1)), int(shape.group(2)))


def _parse_step(line: str) -> Step:
    for op in OPS.values():
        pattern = re.escape("x = " + op.torch).replace(re.escape("{c}"), r"([0-9.]+)")
        match = re.fullmatch(pattern, line)
        if match is not None:
            return Step(op.name, match.group(1) if op.constants else None)
    raise ValueError(f"no operator of the synthetic tasks is written {line!r}; operators: {', '.join(OPS)}")


def init_lines(program: Program) -> list[str]:
    """`__init__` with the program's parameters; nothing where it has none."""
    if not program.parameters:
        return []
    values = {"weight": "torch.rand(cols) + 0.5", "bias": "torch.rand(cols) - 0.5"}
    return [
        "    def __init__(self, cols):",
        "        super().__init__()",
        *(f"        self.{name} = nn.Parameter({values[name]})" for name in program.parameters),
        "",
    ]
