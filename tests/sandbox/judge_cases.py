"""Small tasks and candidates for the tests of the judge: sources only."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path

from sandbox.types import Candidate, Task


def baseline_dir(folder: Path) -> Path:
    """A fresh folder for baselines; what TorchInductor compiled (precompiled headers: 20 s) is kept between tests."""
    kept = Path(tempfile.gettempdir()) / f"jaxagent-tests-{os.getuid()}" / "inductor"
    kept.mkdir(parents=True, exist_ok=True)
    fresh = folder / "baselines"
    fresh.mkdir(parents=True, exist_ok=True)
    (fresh / "inductor").symlink_to(kept)
    return fresh


CHAIN_TASK = Task(
    task_id="chain",
    code="""
import torch
import torch.nn as nn


class Model(nn.Module):
    def __init__(self, scale):
        super().__init__()
        self.scale = scale

    def forward(self, x):
        return torch.relu(x * self.scale) * 0.5 + x * x


def get_inputs():
    return [torch.randn(64, 1000)]


def get_init_inputs():
    return [0.7]
""",
)

AFFINE_TASK = Task(
    task_id="affine",
    code="""
import torch
import torch.nn as nn


class Model(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(width))
        self.bias = nn.Parameter(torch.zeros(width))

    def forward(self, x):
        return x * self.weight + self.bias


def get_inputs():
    return [torch.randn(32, 100)]


def get_init_inputs():
    return [100]
""",
)

CHAIN_KERNEL = """
#include <cstdint>
static float one(float v, float scale) { float r = v * scale; return (r > 0 ? r : 0) * 0.5f + v * v; }
extern "C" void chain(const float* x, float* y, int64_t n, float scale) {
#pragma omp parallel for
  for (int64_t i = 0; i < n; ++i) y[i] = one(x[i], scale);
}
"""

AFFINE_KERNEL = """
#include <cstdint>
extern "C" void affine(const float* x, const float* w, const float* b, float* y, int64_t rows, int64_t width) {
  for (int64_t i = 0; i < rows * width; ++i) y[i] = x[i] * w[i % width] + b[i % width];
}
"""


def candidate(model_new: str, **kernels: str) -> Candidate:
    """`kernels` by stem."""
    files = {"model_new.py": model_new} | {f"kernels/{stem}.cpp": text for stem, text in kernels.items()}
    return Candidate(files=files)


def chain_model(forward: str, *, init: str = "", top: str = "") -> str:
    """model_new.py for CHAIN_TASK: `forward` is the body of forward(self, x), `k` the kernels."""
    return f"""
import torch
import torch.nn as nn
import cpp_kernels as k
{top}

class ModelNew(nn.Module):
    def __init__(self, scale):
        super().__init__()
        self.scale = scale
{_indent(init)}
    def forward(self, x):
{_indent(forward)}
"""


def affine_model(forward: str, *, init: str = "") -> str:
    """model_new.py for AFFINE_TASK."""
    return f"""
import torch
import torch.nn as nn
import cpp_kernels as k


class ModelNew(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(width))
        self.bias = nn.Parameter(torch.zeros(width))
{_indent(init)}
    def forward(self, x):
{_indent(forward)}
"""


def task(code: str, task_id: str = "case") -> Task:
    return Task(task_id=task_id, code=code)


def _indent(text: str) -> str:
    return "\n".join("        " + line for line in text.strip("\n").splitlines()) if text else ""


HONEST_FORWARD = """
y = torch.empty_like(x)
k.chain(x, y, x.numel(), self.scale)
return y
"""

HONEST = candidate(chain_model(HONEST_FORWARD), chain=CHAIN_KERNEL)
