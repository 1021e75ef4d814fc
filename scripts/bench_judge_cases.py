"""What bench_judge.py judges: three kernels, each behind a plain C interface and in the CUDA-Agent layout."""

from __future__ import annotations

from dataclasses import dataclass

from sandbox.types import Candidate, Task

MODEL = """
import torch
import torch.nn as nn


class Model(nn.Module):
    def forward(self, x):
        return {expression}


def get_inputs():
    return [torch.{draw}(512, 1024)]


def get_init_inputs():
    return []
"""

NATIVE = """
import torch
import torch.nn as nn
import cpp_kernels


class ModelNew(nn.Module):
    def forward(self, x):
        y = torch.empty_like(x)
        cpp_kernels.fused(x, y, x.shape[0], x.shape[1])
        return y
"""

AGENT = """
import torch.nn as nn
import cpu_extension


class ModelNew(nn.Module):
    def forward(self, x):
        return cpu_extension.fused(x)
"""

AGENT_HEAD = """
#include <torch/types.h>
#include <torch/csrc/utils/pybind.h>
#include "../binding_registry.h"
"""

AGENT_TAIL = """
static torch::Tensor fused_tensor(const torch::Tensor& x) {
  auto y = torch::empty_like(x);
  fused(x.data_ptr<float>(), y.data_ptr<float>(), x.size(0), x.size(1));
  return y;
}

static void bind_fused(pybind11::module& m) { m.def("fused", &fused_tensor); }
REGISTER_BINDING(fused, bind_fused);
"""

ELEMENTWISE = """
#include <cmath>
#include <cstdint>

{linkage} void fused(const float* x, float* y, int64_t rows, int64_t width) {{
#pragma omp parallel for simd
  for (int64_t i = 0; i < rows * width; ++i) y[i] = x[i] / (1 + std::exp(-x[i])) * 0.5f + x[i] * x[i];
}}
"""

SOFTMAX = """
#include <cmath>
#include <cstdint>

{linkage} void fused(const float* x, float* y, int64_t rows, int64_t width) {{
#pragma omp parallel for
  for (int64_t r = 0; r < rows; ++r) {{
    const float* a = x + r * width;
    float* b = y + r * width;
    float peak = a[0], sum = 0;
    for (int64_t i = 1; i < width; ++i) peak = a[i] > peak ? a[i] : peak;
#pragma omp simd reduction(+ : sum)
    for (int64_t i = 0; i < width; ++i) sum += b[i] = std::exp(a[i] - peak);
    for (int64_t i = 0; i < width; ++i) b[i] /= sum;
  }}
}}
"""

CENTRED = """
#include <cmath>
#include <cstdint>

{linkage} void fused(const float* x, float* y, int64_t rows, int64_t width) {{
#pragma omp parallel for
  for (int64_t r = 0; r < rows; ++r) {{
    double sum = 0;
    for (int64_t i = 0; i < width; ++i) sum += x[r * width + i];
    const float mean = static_cast<float>(sum / width);
    for (int64_t i = 0; i < width; ++i) {{
      const float v = x[r * width + i] - mean;
      y[r * width + i] = v > 0 ? v : 0.1f * v;
    }}
  }}
}}
"""


@dataclass(frozen=True, slots=True)
class Submission:
    name: str
    skill: str
    task: Task
    candidate: Candidate


def submissions(skill: str, mark: str) -> list[Submission]:
    """Three of one skill; `mark` goes into a comment, so that another one is compiled anew."""
    return [
        Submission(name, skill, Task(task_id=name, code=MODEL.format(expression=expression, draw=draw)), candidate)
        for name, expression, draw, kernel in (
            ("elementwise", "x * torch.sigmoid(x) * 0.5 + x * x", "randn", ELEMENTWISE),
            ("softmax", "torch.softmax(x, dim=1)", "randn", SOFTMAX),
            ("centred", "torch.nn.functional.leaky_relu(x - x.mean(dim=1, keepdim=True), 0.1)", "rand", CENTRED),
        )
        for candidate in [_candidate(skill, kernel, mark)]
    ]


def _candidate(skill: str, kernel: str, mark: str) -> Candidate:
    if skill == "cpp":
        source, model = kernel.format(linkage='extern "C"'), NATIVE
    else:
        source, model = AGENT_HEAD + kernel.format(linkage="static") + AGENT_TAIL, AGENT
    return Candidate(files={"model_new.py": model, "kernels/fused.cpp": f"{source}\n// {mark}\n"})
