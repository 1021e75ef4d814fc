"""Kernels of the little language: what stands around a program's steps, in C++ or in CUDA, well made and badly.

A frame says where a row lives and who computes what of it; EACH, SUM and MAX are its words, and the steps are the same
lines in every frame. The kernel quotes each line of `Model.forward` before its own: a decoder learns to copy, and then
to translate line by line.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum

from jaxagent.synthesis.kernels import Program, Steps, init_lines


class Style(StrEnum):
    """How a C++ kernel is framed, from best to worst. The reward of each is measured, see docs of the demo."""

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


class CudaStyle(StrEnum):
    """How a CUDA kernel is framed, from best to worst."""

    BLOCK_VECTOR = "block_vector"
    """A block computes a row that lives in registers, eight elements a thread, and loads 16 bytes at a time."""
    BLOCK_SCALAR = "block_scalar"
    """The same with loads of 4 bytes."""
    WARP_SHARED = "warp_shared"
    """A warp computes a row that lives in shared memory: few threads an SM."""
    BLOCK_NAIVE = "block_naive"
    """A block computes a row in shared memory, and every thread of it sums up the whole row."""

    @property
    def in_registers(self) -> bool:
        return self in (CudaStyle.BLOCK_VECTOR, CudaStyle.BLOCK_SCALAR)


AnyStyle = Style | CudaStyle


@dataclass(frozen=True, slots=True)
class Dialect:
    """What the author of a kernel needs to know of a skill."""

    skill: str
    kernel: str
    """Path of the kernel in the workdir."""
    plans: Mapping[AnyStyle, str]
    """What an author says of a style before writing in it, from best to worst."""

    @property
    def styles(self) -> list[AnyStyle]:
        return list(self.plans)

    @property
    def best(self) -> AnyStyle:
        return self.styles[0]


CPP = Dialect(
    "cpp",
    "kernels/kernel.cpp",
    {
        Style.VECTOR_PARALLEL: "All rows in parallel, SIMD math.",
        Style.VECTOR_SERIAL: "One row after the other, SIMD math.",
        Style.SCALAR_PARALLEL: "All rows in parallel, scalar math.",
        Style.SCALAR_SERIAL: "One row after the other, scalar math.",
    },
)
CUDA = Dialect(
    "cuda",
    "kernels/kernel.cu",
    {
        CudaStyle.BLOCK_VECTOR: "A block a row, in registers, float4.",
        CudaStyle.BLOCK_SCALAR: "A block a row, in registers.",
        CudaStyle.WARP_SHARED: "A warp a row, in shared memory.",
        CudaStyle.BLOCK_NAIVE: "A block a row, in shared memory, every thread sums.",
    },
)
DIALECTS = {dialect.skill: dialect for dialect in (CPP, CUDA)}


def model_new_source(program: Program, dialect: Dialect = CPP) -> str:
    """ModelNew: allocates the output and calls the kernel."""
    is_cuda = dialect is CUDA
    module = f"{dialect.skill}_kernels"
    place = ", device=x.device" if is_cuda else ""
    output = f"torch.empty(x.shape[0]{place})" if program.reduces else "torch.empty_like(x)"
    tensors = ["x", *(f"self.{name}" for name in program.parameters), "y"]
    numbers = ["x.shape[0]"] if is_cuda else ["x.shape[0]", "x.shape[1]"]
    lines = ["import torch", "import torch.nn as nn", f"import {module}", "", ""]
    lines += ["class ModelNew(nn.Module):", *init_lines(program), "    def forward(self, x):"]
    lines += [f"        y = {output}", f"        {module}.run({', '.join([*tensors, *numbers])})", "        return y"]
    return "\n".join(lines) + "\n"


def kernel_source(program: Program, style: AnyStyle, steps: Steps | None = None) -> str:
    """The kernel's file, or with `steps` a faulty one that does these instead and keeps the program's interface."""
    steps = program.steps if steps is None else steps
    lines = _cuda_kernel(program, style, steps) if isinstance(style, CudaStyle) else _cpp_kernel(program, style, steps)
    return "\n".join(lines) + "\n"


def _step_lines(steps: Steps) -> list[str]:
    return [line for step in steps for line in (f"// {step.torch_line}", step.kernel_line)]


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


def _cpp_kernel(program: Program, style: Style, steps: Steps) -> list[str]:
    """Vector styles call libm's SIMD variants (`declare simd`), which g++ otherwise leaves alone."""
    weight = "const float* w, " if program.has("weight") else ""
    lines: list[str] = [*(_VECTOR_FRAME if style.is_vector else _SCALAR_FRAME)]
    lines.append(f'extern "C" void run(const float* x, {weight}float* y, int R, int C) {{')
    if style.is_parallel:
        lines.append("#pragma omp parallel for")
    lines += ["for (int i = 0; i < R; i++) {", "float v[C], s;", "EACH v[j] = x[i * C + j];", *_step_lines(steps)]
    if not program.reduces:
        lines += ["// return x", "EACH y[i * C + j] = v[j];"]
    return [*lines, "}", "}"]


_ADD_AND_LARGER = (
    "__device__ float add(float a, float b) { return a + b; }",
    "__device__ float larger(float a, float b) { return a > b ? a : b; }",
)
_IN_WARP = "for (int k = 16; k; k /= 2) a = F(a, __shfl_xor_sync(~0u, a, k));"
_ALL_OF_BLOCK = (
    "template <float F(float, float)> __device__ float all(float a) {",
    "__shared__ float p[32];",
    _IN_WARP,
    "__syncthreads();",
    "if (threadIdx.x % 32 == 0) p[threadIdx.x / 32] = a;",
    "__syncthreads();",
    "a = p[0];",
    "for (int k = 1; k < T / 32; k++) a = F(a, p[k]);",
    "return a;",
    "}",
)
_ALL_OF_WARP = ("template <float F(float, float)> __device__ float all(float a) {", _IN_WARP, "return a;", "}")
_REDUCED = (
    "#define SUM(e) ({ float t = 0; EACH t += e; all<add>(t); })",
    "#define MAX(e) ({ float t = -1e38f; EACH t = larger(t, e); all<larger>(t); })",
)
_REGISTERS = (
    "#define N 8",
    "#define T (C / N)",
    '#define EACH _Pragma("unroll") for (int j = 0; j < N; j++)',
)
_FOUR_AT_ONCE = (
    "#define FOUR(p, k) ((float4*)(p))[k * T + threadIdx.x]",
    "#define LOAD(a, p) ((float4*)a)[0] = FOUR(p, 0), ((float4*)a)[1] = FOUR(p, 1)",
    "#define STORE(p, a) FOUR(p, 0) = ((float4*)a)[0], FOUR(p, 1) = ((float4*)a)[1]",
)
_ONE_AT_A_TIME = (
    "#define LOAD(a, p) EACH a[j] = (p)[j * T + threadIdx.x]",
    "#define STORE(p, a) EACH (p)[j * T + threadIdx.x] = a[j]",
)
_SHARED = (
    "#define EACH for (int j = threadIdx.x; j < C; j += T)",
    "#define LOAD(a, p) EACH a[j] = (p)[j]",
    "#define STORE(p, a) EACH (p)[j] = a[j]",
)
_SUMMED_BY_ALL = (
    "#define ROW(t0, f) ({ __syncthreads(); float t = t0; for (int j = 0; j < C; j++) f; __syncthreads(); t; })",
    "#define SUM(e) ROW(0, t += e)",
    "#define MAX(e) ROW(-1e38f, t = e > t ? e : t)",
)
_CUDA_FRAMES = {
    CudaStyle.BLOCK_VECTOR: (*_REGISTERS, *_FOUR_AT_ONCE, *_ADD_AND_LARGER, *_ALL_OF_BLOCK, *_REDUCED),
    CudaStyle.BLOCK_SCALAR: (*_REGISTERS, *_ONE_AT_A_TIME, *_ADD_AND_LARGER, *_ALL_OF_BLOCK, *_REDUCED),
    CudaStyle.WARP_SHARED: ("#define T 32", *_SHARED, *_ADD_AND_LARGER, *_ALL_OF_WARP, *_REDUCED),
    CudaStyle.BLOCK_NAIVE: ("#define T 256", *_SHARED, *_SUMMED_BY_ALL),
}
CUDA_COLS_MULTIPLE = 256
"""A row has to be whole warps of eight elements a thread; at most 1,024 threads."""


def _cuda_kernel(program: Program, style: CudaStyle, steps: Steps) -> list[str]:
    parameters = [f"const float* {name}" for name in program.parameters]
    signature = ", ".join(["const float* x", *parameters, "float* y"])
    lines = [f"#define C {program.cols}", *_CUDA_FRAMES[style]]
    lines += [f"__global__ void chain({signature}) {{", "const int i = blockIdx.x;", *_row_lines(program, style)]
    lines += _step_lines(steps)
    if not program.reduces:
        lines += ["// return x", "STORE(y + i * C, v);"]
    lines += ["}", f'extern "C" cudaError_t run({signature}, int R, cudaStream_t stream) {{']
    lines += [
        f"chain<<<R, T, 0, stream>>>({', '.join(['x', *program.parameters, 'y'])});",
        "return cudaGetLastError();",
    ]
    return [*lines, "}"]


def _row_lines(program: Program, style: CudaStyle) -> list[str]:
    """The row v, and what steps read beside it: w, b and r, each where the frame keeps rows."""
    sources = {"w": "weight", "b": "bias"}
    read = {short: name for short, name in sources.items() if program.has(name)}
    if program.has("residual"):
        read["r"] = "x + i * C"
    if style.in_registers:
        lines = ["alignas(16) float v[N]; float s;", "LOAD(v, x + i * C);"]
        return lines + [f"alignas(16) float {short}[N]; LOAD({short}, {name});" for short, name in read.items()]
    lines = ["__shared__ float v[C]; float s;", "LOAD(v, x + i * C);"]
    return lines + [f"const float* {short} = {name};" for short, name in read.items()]
