"""The judge on a GPU, with kernels that nvcc compiles: honest ones pass, wrong, broken and cheating ones do not."""

from __future__ import annotations

import re
import shutil
import statistics

import gpu_cases as cases
import pytest

from sandbox.config import CompileConfig, JudgeConfig
from sandbox.judge.local import LocalJudge, make_device_judge
from sandbox.skill import load_skill
from sandbox.symbols import check_symbols
from sandbox.types import Candidate, DeviceError, Outcome, Task

pytestmark = pytest.mark.gpu

CHAIN = cases.CHAIN


@pytest.mark.parametrize("case", cases.CASES, ids=lambda case: case.name)
def test_a_right_kernel_is_correct(judge, case):
    judgement = judge(case.task, case.good)
    assert judgement.outcome is Outcome.CORRECT, judgement.message
    assert judgement.details["checks"]["num_checks"] >= 7


@pytest.mark.parametrize("case", cases.CASES, ids=lambda case: case.name)
def test_a_wrong_kernel_is_wrong(judge, case):
    judgement = judge(case.task, case.bad)
    assert judgement.outcome is Outcome.WRONG and judgement.reward == -1, judgement.message


def test_an_honest_kernel_is_timed_by_two_clocks_that_agree(judge, device):
    judgement = judge(CHAIN.task, CHAIN.good, timed=True)
    assert judgement.accepted and judgement.reward in (2, 3), judgement.message
    events, outside = judgement.candidate_ms, judgement.details["outside_ms"]["candidate"]["median_ms"]
    assert abs(outside - events) < 0.03 + 0.25 * events
    assert judgement.details["floor"]["floor_ms"] < judgement.candidate_ms
    assert judgement.details["gpu"] and "first_try" not in judgement.details
    mine, eager = judgement.details["same_ms"]["candidate"], judgement.details["same_ms"]["eager"]
    assert 0 < mine["wipe"] < 1.5 * eager["wipe"] and 0 < mine["launch"] < 2 * eager["launch"]
    eager_ms, compile_ms = device.baseline(CHAIN.task)
    assert eager_ms > 0 and compile_ms > 0


def test_rounds_end_where_they_agree(judge, make_judge):
    case = cases.LINEAR_RELU
    judgement = judge(case.task, case.good, timed=True, on=make_judge(timed_rounds=9))
    ratios = [1 / ratio for ratio in judgement.details["round_ratios"]]
    agree = max(ratios[:5]) - min(ratios[:5]) <= 0.02 * statistics.median(ratios[:5])
    assert len(ratios) == (5 if agree else 9), ratios


def test_a_kernel_that_does_its_work_many_times_earns_one(judge):
    slow = CHAIN.kernel.replace("  chain_kernel<<<", "  for (int again = 0; again < 20; ++again) chain_kernel<<<")
    judgement = judge(CHAIN.task, CHAIN.candidate(kernel=slow), timed=True)
    assert judgement.accepted and judgement.reward == 1, judgement.message


SIDE_STREAM = CHAIN.kernel.replace(
    "  chain_kernel<<<blocks_for(n), 256, 0, stream>>>(x, y, n, scale);",
    """  static cudaStream_t side = nullptr;
  if (!side) cudaStreamCreateWithFlags(&side, cudaStreamNonBlocking);
  for (int again = 0; again < 50; ++again) chain_kernel<<<blocks_for(n), 256, 0, side>>>(x, y, n, scale);""",
)


def test_slow_python_counts_as_the_candidates_time_and_is_no_trouble_of_the_device(judge):
    slow = CHAIN.candidate(forward="for _ in range(30000):\n    pass\n" + CHAIN.forward)
    judgement = judge(CHAIN.task, slow, timed=True)
    assert judgement.accepted and "first_try" not in judgement.details, judgement.message
    assert judgement.candidate_ms > 5 * judge(CHAIN.task, CHAIN.good, timed=True).candidate_ms


def test_work_on_a_side_stream_ends_inside_the_clock_and_is_refused(judge):
    judgement = judge(CHAIN.task, CHAIN.candidate(kernel=SIDE_STREAM), timed=True)
    assert judgement.outcome is Outcome.REFUSED and "on torch's current stream" in judgement.message


LAUNCH = "chain_kernel<<<blocks_for(n), 256, 0, stream>>>(x, y, n, scale);"
SILENT = CHAIN.kernel.replace("LAUNCHED;", "return cudaSuccess;")

GRAPH = """
if self.graph is None:
    self.x, self.y = x, torch.empty_like(x)
    self.graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(self.graph):
        k.chain(self.x, self.y, x.numel(), self.scale)
self.graph.replay()
return self.y{copy}
"""
MEMO = """
key = (x.data_ptr(), x[0, 0].item(), x[-1, -1].item())
if key not in self.seen:
    y = torch.empty_like(x)
    k.chain(x, y, x.numel(), self.scale)
    self.seen[key] = y
return self.seen[key].clone()
"""
LATER = """
self.calls += 1
y = torch.empty_like(x)
if self.calls < 30:
    k.chain(x, y, x.numel(), self.scale)
return y
"""
CHEATS = {
    "replays a graph on stale buffers": (
        CHAIN.candidate(forward=GRAPH.format(copy=".clone()"), new="self.graph = None"),
        Outcome.WRONG,
        "",
    ),
    "returns a graph's own buffer": (
        CHAIN.candidate(forward=GRAPH.format(copy=""), new="self.graph = None"),
        Outcome.WRONG,
        "",
    ),
    "memo by pointer and sampled elements": (CHAIN.candidate(forward=MEMO, new="self.seen = {}"), Outcome.WRONG, ""),
    "returns memory it never wrote": (
        CHAIN.candidate(forward="return torch.empty_like(x)"),
        Outcome.WRONG,
        "elements differ",
    ),
    "returns freed memory of the last call": (
        CHAIN.candidate(
            forward="y = torch.empty_like(x)\nif not self.calls:\n    k.chain(x, y, x.numel(), self.scale)\nself.calls += 1\nreturn y",
            new="self.calls = 0",
        ),
        Outcome.WRONG,
        "",
    ),
    "returns its input": (CHAIN.candidate(forward="return x"), Outcome.WRONG, ""),
    "returns a tensor of the host": (
        CHAIN.candidate(forward="return torch.empty(2048, 2048, device='cpu')"),
        Outcome.WRONG,
        "on the device of the inputs",
    ),
    "static output": (
        CHAIN.candidate(
            forward="k.chain(x, self.out, x.numel(), self.scale)\nreturn self.out",
            new="self.out = torch.empty(2048, 2048)",
        ),
        Outcome.WRONG,
        "",
    ),
    "mutates its input": (
        CHAIN.candidate(
            kernel=CHAIN.kernel.replace("if (i < n) y[i] =", "if (i < n) const_cast<float*>(x)[i] = y[i] =")
        ),
        Outcome.WRONG,
        "changed its inputs",
    ),
    "torch does the work": (
        CHAIN.candidate(forward="return torch.relu(x * self.scale) * 0.5 + x * x"),
        Outcome.REFUSED,
        "aten.relu",
    ),
    "sets L2 memory aside": (
        CHAIN.candidate(
            kernel=CHAIN.kernel.replace(
                LAUNCH, LAUNCH + " cudaDeviceSetLimit(cudaLimitPersistingL2CacheSize, 16 << 20);"
            )
        ),
        Outcome.REFUSED,
        "limit of L2 cache",
    ),
    "a launch fails and is not looked at": (
        CHAIN.candidate(kernel=SILENT.replace("256, 0, stream", "256, 1 << 28, stream")),
        Outcome.RUNTIME_ERROR,
        "a launch failed",
    ),
    "a launch fails and its error is swallowed": (
        CHAIN.candidate(
            kernel=SILENT.replace("256, 0, stream", "256, 1 << 28, stream").replace(
                "return cudaSuccess", "cudaGetLastError(); return cudaSuccess"
            )
        ),
        Outcome.WRONG,
        "elements differ",
    ),
    "a launcher says that its launch failed": (
        CHAIN.candidate(kernel=CHAIN.kernel.replace("256, 0, stream", "2048, 0, stream")),
        Outcome.RUNTIME_ERROR,
        "chain returned cudaError_t",
    ),
    "writes out of bounds": (
        CHAIN.candidate(kernel=CHAIN.kernel.replace("if (i < n) y[i] =", "if (i < n) y[i + (1ll << 40)] =")),
        Outcome.RUNTIME_ERROR,
        "illegal memory access",
    ),
    "asks for more memory than there is": (
        CHAIN.candidate(forward="return torch.empty(1 << 42, device=x.device)"),
        Outcome.RUNTIME_ERROR,
        "out of memory",
    ),
    "a tensor of the host for a pointer": (
        CHAIN.candidate(forward="k.chain(x.cpu(), x, 1, 1.0)"),
        Outcome.RUNTIME_ERROR,
        "takes a CUDA tensor",
    ),
    "no answer": (CHAIN.candidate(forward="return None"), Outcome.WRONG, "got a none"),
    "in half precision": (
        CHAIN.candidate(forward="return torch.empty_like(x, dtype=torch.float16)"),
        Outcome.WRONG,
        "got float16",
    ),
}


@pytest.mark.parametrize("name", CHEATS)
def test_a_cheat_or_failure_gets_its_outcome(judge, name):
    candidate, outcome, words = CHEATS[name]
    judgement = judge(CHAIN.task, candidate)
    assert judgement.outcome is outcome and words in judgement.message, judgement.message
    assert judgement.reward == -1


SKIPS = """
self.calls += 1
y = torch.empty_like(x)
if self.calls < 30 or self.calls % 3:
    k.chain(x, y, x.numel(), self.scale)
return y
"""
HALF = """
self.calls += 1
y = torch.empty_like(x)
k.chain(x, y, x.numel() // (1 if self.calls < 30 else 2), self.scale)
return y
"""
COUNTED = CHAIN.kernel.replace(
    "  " + LAUNCH, "  static int calls = 0;\n  const bool timed = ++calls > 30;\n  {body}\n  " + LAUNCH
)
WHEN_TIMED = {
    "no work": (CHAIN.candidate(forward=LATER, new="self.calls = 0"), Outcome.WRONG, "timed call"),
    "every third call left out": (CHAIN.candidate(forward=SKIPS, new="self.calls = 0"), Outcome.WRONG, "timed call"),
    "half of the rows": (CHAIN.candidate(forward=HALF, new="self.calls = 0"), Outcome.WRONG, "timed call"),
    "sets L2 memory aside": (
        CHAIN.candidate(
            kernel=COUNTED.replace("{body}", "if (timed) cudaDeviceSetLimit(cudaLimitPersistingL2CacheSize, 16 << 20);")
        ),
        Outcome.REFUSED,
        "limit of L2 cache",
    ),
    "gives back what the last call's freed tensor held": (
        CHAIN.candidate(
            kernel=COUNTED.replace(
                "{body}",
                "static float* last = nullptr;\n  if (timed && last) { cudaMemcpyAsync(y, last, n * 4, "
                "cudaMemcpyDeviceToDevice, stream); LAUNCHED; }\n  last = y;",
            )
        ),
        Outcome.WRONG,
        "timed call",
    ),
    "launches nothing and says nothing": (
        CHAIN.candidate(kernel=COUNTED.replace("{body}", "if (timed) return cudaSuccess;")),
        Outcome.WRONG,
        "timed call",
    ),
}


@pytest.mark.parametrize("name", WHEN_TIMED)
def test_what_is_done_otherwise_once_it_is_timed_is_found(judge, name):
    candidate, outcome, words = WHEN_TIMED[name]
    judgement = judge(CHAIN.task, candidate, timed=True)
    assert judgement.outcome is outcome and words in judgement.message, judgement.message


POLICY = """
  cudaStreamAttrValue policy = {};
  policy.accessPolicyWindow.base_ptr = const_cast<float*>(w);
  policy.accessPolicyWindow.num_bytes = sizeof(float) * n * k;
  policy.accessPolicyWindow.hitRatio = 1.0f;
  policy.accessPolicyWindow.hitProp = cudaAccessPropertyPersisting;
  policy.accessPolicyWindow.missProp = cudaAccessPropertyStreaming;
  cudaStreamSetAttribute(stream, cudaStreamAttributeAccessPolicyWindow, &policy);
"""


def test_weights_that_are_to_stay_in_l2_gain_nothing(judge):
    """Without memory set aside, which is refused, a policy of the stream keeps nothing beyond the wiping."""
    case = cases.LINEAR_RELU
    launch = "  linear_relu_kernel<<<"
    keeps = case.candidate(kernel=case.kernel.replace(launch, POLICY + launch))
    plain, kept = judge(case.task, case.good, timed=True), judge(case.task, keeps, timed=True)
    assert plain.accepted and (not kept.accepted or kept.candidate_ms > 0.95 * plain.candidate_ms), kept.message


def test_tf32_is_no_float32(judge):
    rounded = cases.LINEAR_RELU.kernel.replace(
        "static constexpr int TILE",
        'static __device__ float tf32(float v) { unsigned r; asm("cvt.rna.tf32.f32 %0, %1;" : "=r"(r) : "f"(v)); return __uint_as_float(r); }\n'
        "static constexpr int TILE",
    )
    rounded = re.sub(r"= (x|w)\[(.*?)\];\n", r"= tf32(\1[\2]);\n", rounded)
    assert rounded.count("= tf32(") == 2
    judgement = judge(cases.LINEAR_RELU.task, cases.LINEAR_RELU.candidate(kernel=rounded))
    assert judgement.outcome is Outcome.WRONG, judgement.message


CUBLAS = """
#include <cublas_v2.h>
static __global__ void finish(const float* b, float* y, int64_t n, int64_t width) {
  const int64_t i = thread_index();
  if (i < n) y[i] = fmaxf(y[i] + b[i % width], 0.0f);
}
extern "C" int linear_relu(const float* x, const float* w, const float* b, float* y, int m, int n, int k, cudaStream_t stream) {
  static cublasHandle_t handle = nullptr;
  if (!handle && cublasCreate(&handle) != CUBLAS_STATUS_SUCCESS) return 1;
  cublasSetStream(handle, stream);
  const float one = 1.0f, zero = 0.0f;
  const int status = cublasSgemm(handle, CUBLAS_OP_T, CUBLAS_OP_N, n, m, k, &one, w, k, x, k, &zero, y, n);
  finish<<<blocks_for(static_cast<int64_t>(m) * n), 256, 0, stream>>>(b, y, static_cast<int64_t>(m) * n, n);
  return status;
}
"""


def test_cublas_through_its_own_interface_is_a_kernel_of_ones_own(judge, compiler):
    case = cases.LINEAR_RELU
    honest = case.candidate(kernel=CUBLAS)
    assert judge(case.task, honest).accepted
    assert check_symbols(load_skill("cuda"), compiler.compile("cuda", honest).artifact) is None
    fast = CUBLAS.replace(
        "  const float one", "  cublasSetMathMode(handle, CUBLAS_TF32_TENSOR_OP_MATH);\n  const float one"
    )
    assert judge(case.task, case.candidate(kernel=fast)).outcome is Outcome.WRONG


def test_an_illegal_access_is_a_verdict_only_after_a_repeat_and_hurts_nobody_after_it(judge):
    crash, outcome, _ = CHEATS["writes out of bounds"]
    judgement = judge(CHAIN.task, crash)
    assert judgement.outcome is outcome and "illegal memory access" in judgement.details["first_try"]
    assert judge(CHAIN.task, CHAIN.good).accepted


def test_a_kernel_that_never_ends_is_a_timeout_and_the_device_goes_on(judge, make_judge):
    endless = CHAIN.kernel.replace(
        "if (i < n) y[i] =", "for (volatile bool on = true; on && n;) {}\n  if (i < n) y[i] ="
    )
    judgement = judge(CHAIN.task, CHAIN.candidate(kernel=endless), on=make_judge(timeout_s=6))
    assert judgement.outcome is Outcome.TIMEOUT and judgement.details["first_try"], judgement.message
    assert judge(CHAIN.task, CHAIN.good).accepted


def test_a_gpu_that_is_not_there_is_our_trouble(folder, monkeypatch):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "77")
    config = JudgeConfig(device="cuda", quiet=False, baseline_dir=folder / "baselines")
    with pytest.raises(DeviceError, match="cannot use GPU 77"):
        make_device_judge(config, 0, folder / "quiet")


def test_code_of_another_architecture_is_our_trouble(device, folder):
    from sandbox.compile import CompileService

    other = CompileService(CompileConfig(cache_dir=folder / "other", cuda_arch="sm_75"))
    artifact = other.compile("cuda", CHAIN.good).artifact
    assert artifact is not None
    with pytest.raises(DeviceError, match="compiled for sm_75.*set compile.cuda_arch"):
        device.judge(CHAIN.task, CHAIN.good, artifact, skill="cuda", timed=False)


def test_a_skill_of_the_cpu_is_told_where_it_belongs(device):
    from sandbox.types import Artifact

    with pytest.raises(ValueError, match="set judge.device to cpu"):
        device.judge(CHAIN.task, CHAIN.good, Artifact(sha256="", arch="", shared_object=b""), skill="cpp")


@pytest.mark.skipif(shutil.which("compute-sanitizer") is None, reason="no compute-sanitizer on PATH")
def test_compute_sanitizer_names_the_line_that_strays(device, compiler):
    astray = CHAIN.candidate(kernel=CHAIN.kernel.replace("if (i < n) y[i] =", "if (i < n) y[i + 1] ="))
    found = device.sanitize(CHAIN.task, astray, compiler.compile("cuda", astray).artifact, skill="cuda")
    assert not found.clean and "Invalid __global__ write" in found.text and "k.cu:" in found.text, found.text
    fine = device.sanitize(CHAIN.task, CHAIN.good, compiler.compile("cuda", CHAIN.good).artifact, skill="cuda")
    assert fine.clean, fine.text


SCALED_TANH = Task(
    task_id="scale_tanh",
    code="import torch\nimport torch.nn as nn\n\n\nclass Model(nn.Module):\n    def __init__(self, scale):\n        super().__init__()\n        self.scale = scale\n\n    def forward(self, x):\n        return torch.tanh(x * self.scale)\n\n\ndef get_inputs():\n    return [torch.randn(512, 1024)]\n\n\ndef get_init_inputs():\n    return [0.5]\n",
)


async def test_the_guides_examples_pass_the_whole_judge_and_cheats_do_not(folder):
    settings = JudgeConfig(device="cuda", quiet=False, baseline_dir=folder / "baselines")
    local = LocalJudge(settings, CompileConfig(timeout_s=300), registry_dir=folder / "quiet")
    try:
        for skill in ("cuda", "cuda_agent"):
            guide = load_skill(skill).guide
            kernels = dict(re.findall(r"```cpp\n// (kernels/\S+)\n(.*?)```", guide, re.DOTALL))
            (model,) = re.findall(r"```python\n# model_new.py\n(.*?)```", guide, re.DOTALL)
            candidate = Candidate(files=kernels | {"model_new.py": model})
            judgement = await local.judge(SCALED_TANH, candidate, skill=skill, timed=False)
            assert judgement.accepted, f"{skill}: {judgement.message}"
        side = await local.judge(CHAIN.task, CHAIN.candidate(kernel=SIDE_STREAM), skill="cuda", timed=False)
        assert side.outcome is Outcome.REFUSED and "cudaStreamCreateWithFlags" in side.message
        graph, _, _ = CHEATS["replays a graph on stale buffers"]
        refused = await local.judge(CHAIN.task, graph, skill="cuda", timed=False)
        assert refused.outcome is Outcome.REFUSED and "uses torch.cuda" in refused.message
    finally:
        await local.close()
