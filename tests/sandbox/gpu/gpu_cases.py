"""Tasks with hand-written CUDA kernels for the tests of the judge on a GPU: sources only.

Every case has a kernel that is right, and the text whose replacement makes it wrong in a way that is easy to write.
"""

from __future__ import annotations

from dataclasses import dataclass

from sandbox.types import Candidate, Task

HEAD = """
#include <cuda_runtime.h>
#include <cstdint>
#include <cfloat>
#define LAUNCHED return cudaGetLastError()
static int blocks_for(int64_t n) { return static_cast<int>((n + 255) / 256); }
static __device__ __forceinline__ int64_t thread_index() { return blockIdx.x * static_cast<int64_t>(blockDim.x) + threadIdx.x; }
static __device__ __forceinline__ float block_sum(float v) {
  __shared__ float part[32];
  for (int d = 16; d; d >>= 1) v += __shfl_down_sync(0xffffffffu, v, d);
  if (threadIdx.x % 32 == 0) part[threadIdx.x / 32] = v;
  __syncthreads();
  if (threadIdx.x < 32) {
    v = threadIdx.x < blockDim.x / 32 ? part[threadIdx.x] : 0.0f;
    for (int d = 16; d; d >>= 1) v += __shfl_down_sync(0xffffffffu, v, d);
    if (threadIdx.x == 0) part[0] = v;
  }
  __syncthreads();
  v = part[0];
  __syncthreads();
  return v;
}
static __device__ __forceinline__ float block_max(float v) {
  __shared__ float part[32];
  for (int d = 16; d; d >>= 1) v = fmaxf(v, __shfl_down_sync(0xffffffffu, v, d));
  if (threadIdx.x % 32 == 0) part[threadIdx.x / 32] = v;
  __syncthreads();
  if (threadIdx.x < 32) {
    v = threadIdx.x < blockDim.x / 32 ? part[threadIdx.x] : -FLT_MAX;
    for (int d = 16; d; d >>= 1) v = fmaxf(v, __shfl_down_sync(0xffffffffu, v, d));
    if (threadIdx.x == 0) part[0] = v;
  }
  __syncthreads();
  v = part[0];
  __syncthreads();
  return v;
}
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """One task and one way to solve it."""

    name: str
    model: str
    """Body of class Model."""
    inputs: str
    """What get_inputs returns."""
    init: str = "[]"
    new: str = ""
    """Body of ModelNew.__init__ (without super); the parameters of Model's."""
    forward: str
    arguments: str = "x"
    parameters: str = ""
    kernel: str
    right: str
    """Text in the kernel …"""
    wrong: str
    """… and what makes it wrong."""

    @property
    def task(self) -> Task:
        return Task(
            task_id=self.name,
            code=f"""
import torch
import torch.nn as nn
import torch.nn.functional as F


class Model(nn.Module):
{_indent(self.model, 4)}


def get_inputs():
    return {self.inputs}


def get_init_inputs():
    return {self.init}
""",
        )

    @property
    def good(self) -> Candidate:
        return self.candidate()

    @property
    def bad(self) -> Candidate:
        assert self.right in self.kernel, self.name
        return self.candidate(kernel=self.kernel.replace(self.right, self.wrong))

    def candidate(
        self, *, kernel: str | None = None, forward: str | None = None, new: str = "", top: str = ""
    ) -> Candidate:
        model_new = f"""
import torch
import torch.nn as nn
import cuda_kernels as k
{top}

class ModelNew(nn.Module):
    def __init__(self{self.parameters and ", " + self.parameters}):
        super().__init__()
{_indent(self.new + chr(10) + new, 8)}

    def forward(self, {self.arguments}):
{_indent(forward if forward is not None else self.forward, 8)}
"""
        return Candidate(files={"model_new.py": model_new, "kernels/k.cu": HEAD + (kernel or self.kernel)})


def _indent(text: str, width: int) -> str:
    return "\n".join(" " * width + line for line in text.strip("\n").splitlines())


CHAIN = Case(
    name="elementwise chain",
    model="""
def __init__(self, scale):
    super().__init__()
    self.scale = scale

def forward(self, x):
    return torch.relu(x * self.scale) * 0.5 + x * x
""",
    inputs="[torch.randn(2048, 2048)]",
    init="[0.7]",
    parameters="scale",
    new="self.scale = scale",
    forward="""
y = torch.empty_like(x)
k.chain(x, y, x.numel(), self.scale)
return y
""",
    kernel="""
static __global__ void chain_kernel(const float* x, float* y, int64_t n, float scale) {
  const int64_t i = thread_index();
  if (i < n) y[i] = fmaxf(x[i] * scale, 0.0f) * 0.5f + x[i] * x[i];
}
extern "C" cudaError_t chain(const float* x, float* y, int64_t n, float scale, cudaStream_t stream) {
  chain_kernel<<<blocks_for(n), 256, 0, stream>>>(x, y, n, scale);
  LAUNCHED;
}
""",
    right="* 0.5f",
    wrong="* 0.51f",
)

BIAS_GELU = Case(
    name="bias and gelu",
    model="""
def __init__(self, width):
    super().__init__()
    self.bias = nn.Parameter(torch.zeros(width))

def forward(self, x):
    return F.gelu(x + self.bias)
""",
    inputs="[torch.randn(2048, 1024)]",
    init="[1024]",
    parameters="width",
    new="self.bias = nn.Parameter(torch.zeros(width))",
    forward="""
y = torch.empty_like(x)
k.bias_gelu(x, self.bias, y, x.numel(), x.shape[1])
return y
""",
    kernel="""
static __global__ void bias_gelu_kernel(const float* x, const float* b, float* y, int64_t n, int64_t width) {
  const int64_t i = thread_index();
  if (i >= n) return;
  const float v = x[i] + b[i % width];
  y[i] = 0.5f * v * (1.0f + erff(v * 0.70710678f));
}
extern "C" cudaError_t bias_gelu(const float* x, const float* b, float* y, int64_t n, int64_t width, cudaStream_t stream) {
  bias_gelu_kernel<<<blocks_for(n), 256, 0, stream>>>(x, b, y, n, width);
  LAUNCHED;
}
""",
    right="x[i] + b[i % width]",
    wrong="x[i]",
)

ROW_SUM = Case(
    name="row sum",
    model="def forward(self, x):\n    return x.sum(dim=1)",
    inputs="[torch.randn(4096, 4096)]",
    forward="""
y = torch.empty(x.shape[0], device=x.device)
k.row_sum(x, y, x.shape[0], x.shape[1])
return y
""",
    kernel="""
static __global__ void row_sum_kernel(const float* x, float* y, int64_t width) {
  float sum = 0.0f;
  for (int64_t c = threadIdx.x; c < width; c += blockDim.x) sum += x[blockIdx.x * width + c];
  sum = block_sum(sum);
  if (threadIdx.x == 0) y[blockIdx.x] = sum;
}
extern "C" cudaError_t row_sum(const float* x, float* y, int64_t rows, int64_t width, cudaStream_t stream) {
  row_sum_kernel<<<static_cast<int>(rows), 256, 0, stream>>>(x, y, width);
  LAUNCHED;
}
""",
    right="c < width",
    wrong="c < width - 16",
)

SOFTMAX = Case(
    name="softmax",
    model="def forward(self, x):\n    return torch.softmax(x, dim=-1)",
    inputs="[torch.randn(2048, 2048)]",
    forward="""
y = torch.empty_like(x)
k.softmax(x, y, x.shape[0], x.shape[1])
return y
""",
    kernel="""
static __global__ void softmax_kernel(const float* x, float* y, int64_t width) {
  x += blockIdx.x * width;
  y += blockIdx.x * width;
  float top = -FLT_MAX;
  for (int64_t c = threadIdx.x; c < width; c += blockDim.x) top = fmaxf(top, x[c]);
  top = block_max(top);
  float sum = 0.0f;
  for (int64_t c = threadIdx.x; c < width; c += blockDim.x) sum += expf(x[c] - top);
  sum = block_sum(sum);
  for (int64_t c = threadIdx.x; c < width; c += blockDim.x) y[c] = expf(x[c] - top) / sum;
}
extern "C" cudaError_t softmax(const float* x, float* y, int64_t rows, int64_t width, cudaStream_t stream) {
  softmax_kernel<<<static_cast<int>(rows), 256, 0, stream>>>(x, y, width);
  LAUNCHED;
}
""",
    right="y[c] = expf(x[c] - top) / sum",
    wrong="y[c] = expf(x[c] - top) / (sum * 1.001f)",
)

LAYER_NORM = Case(
    name="layer norm",
    model="""
def __init__(self, width):
    super().__init__()
    self.norm = nn.LayerNorm(width)

def forward(self, x):
    return self.norm(x)
""",
    inputs="[torch.randn(2048, 1024)]",
    init="[1024]",
    parameters="width",
    new="self.norm = nn.LayerNorm(width)",
    forward="""
y = torch.empty_like(x)
k.layer_norm(x, self.norm.weight, self.norm.bias, y, x.shape[0], x.shape[1], self.norm.eps)
return y
""",
    kernel="""
static __global__ void layer_norm_kernel(const float* x, const float* w, const float* b, float* y, int64_t width, float eps) {
  x += blockIdx.x * width;
  y += blockIdx.x * width;
  float sum = 0.0f;
  for (int64_t c = threadIdx.x; c < width; c += blockDim.x) sum += x[c];
  const float mean = block_sum(sum) / width;
  float squares = 0.0f;
  for (int64_t c = threadIdx.x; c < width; c += blockDim.x) squares += (x[c] - mean) * (x[c] - mean);
  const float scale = rsqrtf(block_sum(squares) / width + eps);
  for (int64_t c = threadIdx.x; c < width; c += blockDim.x) y[c] = (x[c] - mean) * scale * w[c] + b[c];
}
extern "C" cudaError_t layer_norm(const float* x, const float* w, const float* b, float* y, int64_t rows, int64_t width,
                                  float eps, cudaStream_t stream) {
  layer_norm_kernel<<<static_cast<int>(rows), 256, 0, stream>>>(x, w, b, y, width, eps);
  LAUNCHED;
}
""",
    right="* scale * w[c] + b[c]",
    wrong="* scale",
)

RMS_NORM = Case(
    name="rms norm",
    model="""
def __init__(self, width):
    super().__init__()
    self.weight = nn.Parameter(torch.ones(width))

def forward(self, x):
    return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-6) * self.weight
""",
    inputs="[torch.randn(4096, 1024)]",
    init="[1024]",
    parameters="width",
    new="self.weight = nn.Parameter(torch.ones(width))",
    forward="""
y = torch.empty_like(x)
k.rms_norm(x, self.weight, y, x.shape[0], x.shape[1])
return y
""",
    kernel="""
static __global__ void rms_norm_kernel(const float* x, const float* w, float* y, int64_t width) {
  x += blockIdx.x * width;
  y += blockIdx.x * width;
  float squares = 0.0f;
  for (int64_t c = threadIdx.x; c < width; c += blockDim.x) squares += x[c] * x[c];
  const float scale = rsqrtf(block_sum(squares) / width + 1e-6f);
  for (int64_t c = threadIdx.x; c < width; c += blockDim.x) y[c] = x[c] * scale * w[c];
}
extern "C" cudaError_t rms_norm(const float* x, const float* w, float* y, int64_t rows, int64_t width, cudaStream_t stream) {
  rms_norm_kernel<<<static_cast<int>(rows), 256, 0, stream>>>(x, w, y, width);
  LAUNCHED;
}
""",
    right="rsqrtf(block_sum(squares) / width",
    wrong="rsqrtf(block_sum(squares) / (width - 1)",
)

LINEAR_RELU = Case(
    name="matmul, bias and relu",
    model="""
def __init__(self, width):
    super().__init__()
    self.linear = nn.Linear(width, width)

def forward(self, x):
    return torch.relu(self.linear(x))
""",
    inputs="[torch.randn(1024, 1024)]",
    init="[1024]",
    parameters="width",
    new="self.linear = nn.Linear(width, width)",
    forward="""
y = torch.empty(x.shape[0], self.linear.weight.shape[0], device=x.device)
k.linear_relu(x, self.linear.weight, self.linear.bias, y, x.shape[0], y.shape[1], x.shape[1])
return y
""",
    kernel="""
static constexpr int TILE = 64, STEP = 16;
static __global__ void linear_relu_kernel(const float* x, const float* w, const float* b, float* y, int m, int n, int k) {
  __shared__ float xs[STEP][TILE + 1], ws[STEP][TILE + 1];
  const int row = blockIdx.y * TILE, column = blockIdx.x * TILE, tx = threadIdx.x % 16, ty = threadIdx.x / 16;
  float sum[4][4] = {};
  for (int start = 0; start < k; start += STEP) {
    for (int at = threadIdx.x; at < TILE * STEP; at += 256) {
      xs[at % STEP][at / STEP] = x[static_cast<int64_t>(row + at / STEP) * k + start + at % STEP];
      ws[at % STEP][at / STEP] = w[static_cast<int64_t>(column + at / STEP) * k + start + at % STEP];
    }
    __syncthreads();
    for (int d = 0; d < STEP; ++d)
      for (int i = 0; i < 4; ++i)
        for (int j = 0; j < 4; ++j) sum[i][j] += xs[d][ty + 16 * i] * ws[d][tx + 16 * j];
    __syncthreads();
  }
  for (int i = 0; i < 4; ++i)
    for (int j = 0; j < 4; ++j)
      y[static_cast<int64_t>(row + ty + 16 * i) * n + column + tx + 16 * j] = fmaxf(sum[i][j] + b[column + tx + 16 * j], 0.0f);
}
extern "C" cudaError_t linear_relu(const float* x, const float* w, const float* b, float* y, int m, int n, int k, cudaStream_t stream) {
  linear_relu_kernel<<<dim3(n / TILE, m / TILE), 256, 0, stream>>>(x, w, b, y, m, n, k);
  LAUNCHED;
}
""",
    right="start < k;",
    wrong="start < k - STEP;",
)

CONV_RELU = Case(
    name="convolution and relu",
    model="""
def __init__(self, channels, filters):
    super().__init__()
    self.conv = nn.Conv2d(channels, filters, 3, padding=1)

def forward(self, x):
    return torch.relu(self.conv(x))
""",
    inputs="[torch.randn(16, 8, 64, 64)]",
    init="[8, 32]",
    parameters="channels, filters",
    new="self.conv = nn.Conv2d(channels, filters, 3, padding=1)",
    forward="""
n, c, h, w = x.shape
y = torch.empty(n, self.conv.weight.shape[0], h, w, device=x.device)
k.conv_relu(x, self.conv.weight, self.conv.bias, y, n, c, y.shape[1], h, w)
return y
""",
    kernel="""
static __global__ void conv_relu_kernel(const float* x, const float* f, const float* b, float* y, int c, int filters, int h, int w) {
  extern __shared__ float weights[];
  const int o = blockIdx.y, n = blockIdx.z;
  for (int i = threadIdx.x; i < c * 9; i += blockDim.x) weights[i] = f[o * c * 9 + i];
  __syncthreads();
  const int at = blockIdx.x * blockDim.x + threadIdx.x;
  if (at >= h * w) return;
  const int row = at / w, column = at % w;
  float sum = b[o];
  for (int i = 0; i < c; ++i)
    for (int dy = -1; dy <= 1; ++dy)
      for (int dx = -1; dx <= 1; ++dx) {
        const int r = row + dy, q = column + dx;
        if (r >= 0 && r < h && q >= 0 && q < w)
          sum += x[((static_cast<int64_t>(n) * c + i) * h + r) * w + q] * weights[i * 9 + (dy + 1) * 3 + dx + 1];
      }
  y[(static_cast<int64_t>(n) * filters + o) * h * w + at] = fmaxf(sum, 0.0f);
}
extern "C" cudaError_t conv_relu(const float* x, const float* f, const float* b, float* y, int n, int c, int filters, int h,
                                 int w, cudaStream_t stream) {
  conv_relu_kernel<<<dim3((h * w + 255) / 256, filters, n), 256, c * 9 * sizeof(float), stream>>>(x, f, b, y, c, filters, h, w);
  LAUNCHED;
}
""",
    right="r >= 0 && r < h",
    wrong="r > 0 && r < h",
)

TRANSPOSE = Case(
    name="transpose and scale",
    model="def forward(self, x):\n    return (x.t() * 2.0).contiguous()",
    inputs="[torch.randn(2048, 1024)]",
    forward="""
y = torch.empty(x.shape[1], x.shape[0], device=x.device)
k.transpose(x, y, x.shape[0], x.shape[1])
return y
""",
    kernel="""
static __global__ void transpose_kernel(const float* x, float* y, int rows, int columns) {
  __shared__ float tile[32][33];
  int c = blockIdx.x * 32 + threadIdx.x, r = blockIdx.y * 32 + threadIdx.y;
  for (int d = 0; d < 32; d += 8)
    if (r + d < rows && c < columns) tile[threadIdx.y + d][threadIdx.x] = 2.0f * x[static_cast<int64_t>(r + d) * columns + c];
  __syncthreads();
  c = blockIdx.y * 32 + threadIdx.x;
  r = blockIdx.x * 32 + threadIdx.y;
  for (int d = 0; d < 32; d += 8)
    if (r + d < columns && c < rows) y[static_cast<int64_t>(r + d) * rows + c] = tile[threadIdx.x][threadIdx.y + d];
}
extern "C" cudaError_t transpose(const float* x, float* y, int rows, int columns, cudaStream_t stream) {
  transpose_kernel<<<dim3((columns + 31) / 32, (rows + 31) / 32), dim3(32, 8), 0, stream>>>(x, y, rows, columns);
  LAUNCHED;
}
""",
    right="tile[threadIdx.x][threadIdx.y + d]",
    wrong="tile[threadIdx.x][threadIdx.y]",
)

ROW_MAX = Case(
    name="row maximum and its place",
    model="def forward(self, x):\n    values, indices = x.max(dim=1)\n    return values, indices",
    inputs="[torch.randn(4096, 1024)]",
    forward="""
values = torch.empty(x.shape[0], device=x.device)
indices = torch.empty(x.shape[0], dtype=torch.int64, device=x.device)
k.row_max(x, values, indices, x.shape[0], x.shape[1])
return values, indices
""",
    kernel="""
static __global__ void row_max_kernel(const float* x, float* values, int64_t* indices, int64_t width) {
  x += blockIdx.x * width;
  float top = -FLT_MAX;
  int64_t where = 0;
  for (int64_t c = threadIdx.x; c < width; c += 32)
    if (x[c] > top) { top = x[c]; where = c; }
  for (int d = 16; d; d >>= 1) {
    const float other = __shfl_down_sync(0xffffffffu, top, d);
    const int64_t at = __shfl_down_sync(0xffffffffu, where, d);
    if (other > top || (other == top && at < where)) { top = other; where = at; }
  }
  if (threadIdx.x == 0) { values[blockIdx.x] = top; indices[blockIdx.x] = where; }
}
extern "C" cudaError_t row_max(const float* x, float* values, int64_t* indices, int64_t rows, int64_t width, cudaStream_t stream) {
  row_max_kernel<<<static_cast<int>(rows), 32, 0, stream>>>(x, values, indices, width);
  LAUNCHED;
}
""",
    right="indices[blockIdx.x] = where",
    wrong="indices[blockIdx.x] = where ^ 1",
)

EMBEDDING = Case(
    name="embedding of integer tokens",
    model="""
def __init__(self, tokens, width):
    super().__init__()
    self.table = nn.Embedding(tokens, width)

def forward(self, x, scale):
    return self.table(x) * scale
""",
    inputs="[torch.randint(0, 5000, (64, 128)), 1.5]",
    init="[5000, 256]",
    arguments="x, scale",
    parameters="tokens, width",
    new="self.table = nn.Embedding(tokens, width)",
    forward="""
width = self.table.weight.shape[1]
y = torch.empty(*x.shape, width, device=x.device)
k.embedding(x, self.table.weight, y, x.numel(), width, scale)
return y
""",
    kernel="""
static __global__ void embedding_kernel(const int64_t* x, const float* table, float* y, int64_t n, int64_t width, float scale) {
  const int64_t i = thread_index();
  if (i < n * width) y[i] = table[x[i / width] * width + i % width] * scale;
}
extern "C" cudaError_t embedding(const int64_t* x, const float* table, float* y, int64_t n, int64_t width, float scale, cudaStream_t stream) {
  embedding_kernel<<<blocks_for(n * width), 256, 0, stream>>>(x, table, y, n, width, scale);
  LAUNCHED;
}
""",
    right="* scale;",
    wrong=";",
)

BATCH_NORM = Case(
    name="batch norm and relu",
    model="""
def __init__(self, channels):
    super().__init__()
    self.norm = nn.BatchNorm2d(channels)

def forward(self, x):
    return torch.relu(self.norm(x))
""",
    inputs="[torch.randn(32, 64, 32, 32)]",
    init="[64]",
    parameters="channels",
    new="self.norm = nn.BatchNorm2d(channels)",
    forward="""
y = torch.empty_like(x)
bn = self.norm
k.batch_norm(x, bn.running_mean, bn.running_var, bn.weight, bn.bias, y, x.numel(), x.shape[1], x.shape[2] * x.shape[3], bn.eps)
return y
""",
    kernel="""
static __global__ void batch_norm_kernel(const float* x, const float* m, const float* v, const float* w, const float* b, float* y,
                                         int64_t n, int64_t channels, int64_t area, float eps) {
  const int64_t i = thread_index();
  if (i >= n) return;
  const int64_t c = i / area % channels;
  y[i] = fmaxf((x[i] - m[c]) * rsqrtf(v[c] + eps) * w[c] + b[c], 0.0f);
}
extern "C" cudaError_t batch_norm(const float* x, const float* m, const float* v, const float* w, const float* b, float* y,
                                  int64_t n, int64_t channels, int64_t area, float eps, cudaStream_t stream) {
  batch_norm_kernel<<<blocks_for(n), 256, 0, stream>>>(x, m, v, w, b, y, n, channels, area, eps);
  LAUNCHED;
}
""",
    right="(x[i] - m[c]) * rsqrtf(v[c] + eps)",
    wrong="x[i]",
)

MSE = Case(
    name="mean squared error",
    model="def forward(self, x, target):\n    return torch.mean((x - target) ** 2)",
    inputs="[torch.rand(2048, 2048), torch.rand(2048, 2048)]",
    arguments="x, target",
    forward="""
y = torch.zeros((), device=x.device)
k.mse(x, target, y, x.numel())
return y
""",
    kernel="""
static __global__ void mse_kernel(const float* x, const float* target, float* y, int64_t n) {
  float sum = 0.0f;
  for (int64_t i = thread_index(); i < n; i += static_cast<int64_t>(gridDim.x) * blockDim.x) sum += (x[i] - target[i]) * (x[i] - target[i]);
  sum = block_sum(sum);
  if (threadIdx.x == 0) atomicAdd(y, sum / n);
}
extern "C" cudaError_t mse(const float* x, const float* target, float* y, int64_t n, cudaStream_t stream) {
  mse_kernel<<<1024, 256, 0, stream>>>(x, target, y, n);
  LAUNCHED;
}
""",
    right="i < n;",
    wrong="i < n / 8;",
)

MAX_POOL = Case(
    name="max pool",
    model="def forward(self, x):\n    return F.max_pool2d(x, 2)",
    inputs="[torch.randn(16, 32, 128, 128)]",
    forward="""
n, c, h, w = x.shape
y = torch.empty(n, c, h // 2, w // 2, device=x.device)
k.max_pool(x, y, y.numel(), h // 2, w // 2)
return y
""",
    kernel="""
static __global__ void max_pool_kernel(const float* x, float* y, int64_t n, int h, int w) {
  const int64_t i = thread_index();
  if (i >= n) return;
  const int64_t plane = i / (h * w), row = i / w % h, column = i % w;
  const float* from = x + (plane * 2 * h + row * 2) * 2 * w + column * 2;
  y[i] = fmaxf(fmaxf(from[0], from[1]), fmaxf(from[2 * w], from[2 * w + 1]));
}
extern "C" cudaError_t max_pool(const float* x, float* y, int64_t n, int h, int w, cudaStream_t stream) {
  max_pool_kernel<<<blocks_for(n), 256, 0, stream>>>(x, y, n, h, w);
  LAUNCHED;
}
""",
    right="from[2 * w + 1]",
    wrong="from[1]",
)

CASES = [
    CHAIN,
    BIAS_GELU,
    ROW_SUM,
    SOFTMAX,
    LAYER_NORM,
    RMS_NORM,
    LINEAR_RELU,
    CONV_RELU,
    TRANSPOSE,
    ROW_MAX,
    EMBEDDING,
    BATCH_NORM,
    MSE,
    MAX_POOL,
]
