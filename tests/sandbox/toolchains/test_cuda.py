"""nvcc on kernels behind a plain C ABI; no GPU needed."""

from __future__ import annotations

import re
import struct

import pytest
import torch

from sandbox.bindings import load_module
from sandbox.compile import CompileService
from sandbox.config import CompileConfig
from sandbox.elf import dynamic_symbols
from sandbox.skill import load_skill
from sandbox.symbols import check_symbols
from sandbox.toolchains import cuda_toolkit
from sandbox.toolchains.cuda import host_assembly
from sandbox.types import Artifact, Candidate, CompileResult, SandboxUnavailableError

pytestmark = pytest.mark.nvcc

SCALE = """
#include <cuda_runtime.h>
#include <cuda_fp16.h>
#include <cstdint>
#include "shared.cuh"
__global__ void scale_kernel(const float* x, float* y, int64_t n, float factor) {
  const int64_t i = blockIdx.x * static_cast<int64_t>(blockDim.x) + threadIdx.x;
  if (i < n) y[i] = twice(x[i]) * factor;
}
extern "C" cudaError_t scale(const float* x, float* y, int64_t n, float factor, cudaStream_t stream) {
  scale_kernel<<<static_cast<int>((n + 255) / 256), 256, 0, stream>>>(x, y, n, factor);
  return cudaGetLastError();
}
extern "C" int answer(const __half* x, void* stream) { return x == nullptr ? 42 : 0; }
"""
SHARED = "#pragma once\n__device__ float twice(float x) { return 2 * x; }\n"


@pytest.fixture(scope="module")
def compiles(tmp_path_factory) -> CompileService:
    return CompileService(CompileConfig(cache_dir=tmp_path_factory.mktemp("cuda"), cuda_arch="sm_90a"))


def compiled(compiles: CompileService, **files: str) -> CompileResult:
    """`files` by stem; all end in .cu but `shared`."""
    names = {stem: f"kernels/{stem}.{'cuh' if stem == 'shared' else 'cu'}" for stem in files}
    return compiles.compile("cuda", Candidate(files={names[stem]: text for stem, text in files.items()}))


@pytest.fixture(scope="module")
def artifact(compiles) -> Artifact:
    result = compiled(compiles, scale=SCALE, shared=SHARED)
    assert result.artifact is not None, result.message
    return result.artifact


def test_kernels_compile_without_a_gpu_for_the_stated_architecture(artifact, compiles):
    assert artifact.arch == "sm_90a" and artifact.shared_object[:4] == b"\x7fELF"
    cubin = artifact.shared_object.find(b"\x7fELF", 4)
    assert cubin > 0, "no device code is embedded"
    (machine,) = struct.unpack_from("<H", artifact.shared_object, cubin + 18)
    assert machine == 190  # EM_CUDA
    assert any(name.startswith("libcudart.so.") for name in dynamic_symbols(artifact.shared_object).needed)
    again = compiled(compiles, scale=SCALE, shared=SHARED)
    assert again.cached and again.artifact == artifact


def test_the_architecture_is_part_of_the_key(artifact, compiles, tmp_path):
    other = CompileService(CompileConfig(cache_dir=compiles._config.cache_dir, cuda_arch="sm_80"))
    result = compiled(other, scale=SCALE, shared=SHARED)
    assert result.artifact is not None and not result.cached and result.artifact.arch == "sm_80"
    assert result.artifact.sha256 != artifact.sha256


def test_bindings_leave_the_stream_to_torch(artifact, tmp_path):
    (tmp_path / "k.so").write_bytes(artifact.shared_object)
    try:
        kernels = load_module("cuda_kernels", tmp_path / "k.so", artifact.interface)
    except ImportError as error:
        assert "libcudart" in str(error)  # torch brings it, in builds with CUDA
        pytest.skip("the CUDA runtime library is not on the loader's path here")
    assert kernels.scale.__doc__ == "status scale(float32* x, float32* y, int64 n, float32 factor)"
    with pytest.raises(TypeError, match="x takes a CUDA tensor, got one on cpu"):
        kernels.scale(torch.ones(4), torch.ones(4), 4, 2.0)
    with pytest.raises(TypeError, match="missing 1 required positional argument: 'factor'"):
        kernels.scale(None, None, 4)


def test_an_honest_object_passes_the_symbol_scan(artifact):
    assert check_symbols(load_skill("cuda"), artifact) is None


@pytest.mark.parametrize(
    ("body", "words"),
    [
        ("cudaStream_t s; cudaStreamCreateWithFlags(&s, cudaStreamNonBlocking);", "cudaStreamCreateWithFlags"),
        ("cudaDeviceSetLimit(cudaLimitPersistingL2CacheSize, 1 << 20);", "cudaDeviceSetLimit"),
        ("cudaGraph_t g; cudaGraphCreate(&g, 0);", "cudaGraphCreate"),
        ("cudaEvent_t e; cudaEventCreate(&e);", "cudaEventCreate"),
        ("cudaLaunchHostFunc(nullptr, [](void*) {}, nullptr);", "cudaLaunchHostFunc"),
        ("cudaIpcMemHandle_t h; cudaIpcGetMemHandle(&h, nullptr);", "cudaIpcGetMemHandle"),
        ("std::thread([] {}).detach();", "host threads"),
        ('std::system("true");', "starts processes"),
        ('std::fopen("/etc/passwd", "r");', "opens files"),
    ],
)
def test_what_a_launcher_may_not_call_is_found_in_the_symbols(compiles, body, words):
    source = (
        "#include <cuda_runtime.h>\n#include <thread>\n#include <cstdio>\n#include <cstdlib>\n"
        f'extern "C" void f() {{ {body} }}\n'
    )
    result = compiled(compiles, k=source)
    assert result.artifact is not None, result.message
    assert words in (check_symbols(load_skill("cuda"), result.artifact) or "")


def test_the_first_error_is_shown_with_its_line_and_source(compiles):
    result = compiled(compiles, scale=SCALE.replace("twice(x[i])", "thrice(x[i])"), shared=SHARED)
    lines = result.message.splitlines()
    assert re.match(r'kernels/scale\.cu\(8\): error: identifier "thrice" is undefined', lines[0]), result.message
    assert "thrice(x[i])" in lines[1] and lines[2].strip() == "^"


def test_errors_of_every_file_and_of_every_stage_reach_the_author(compiles):
    too_much = "__global__ void g(float* x) { __shared__ float s[100000]; s[threadIdx.x] = 1; __syncthreads(); x[0] = s[9]; }\n"
    result = compiled(
        compiles,
        a='extern "C" void f() { missing(); }\n',
        b=too_much + 'extern "C" void h(float* x) { g<<<1, 1>>>(x); }\n',
    )
    assert "kernels/a.cu(1): error" in result.message and "uses too much shared data" in result.message
    bad_ptx = 'extern "C" __global__ void g(float* x) { asm volatile("bogus.f32 %0;" :: "f"(x[0])); }\nextern "C" void h() {}\n'
    assert "bogus" in compiled(compiles, k=bad_ptx).message
    host = 'extern "C" void h() { int x = "text"; }\n'
    assert "kernels/k.cu(1): error" in compiled(compiles, k=host).message


def test_an_error_deep_in_a_header_is_led_by_the_line_that_caused_it(compiles):
    source = '#include <vector>\n#include <algorithm>\nstruct S {};\nextern "C" void g() {\n  std::vector<S> v;\n  std::sort(v.begin(), v.end());\n}\n'
    assert compiled(compiles, k=source).message.startswith("kernels/k.cu(6): required from here")


@pytest.mark.parametrize(
    "body",
    [
        'asm volatile("nop");',
        'NAME("nop");',
        'PASTE(as, m)("nop");',
    ],
)
def test_assembly_in_host_code_is_refused_however_it_is_spelled(compiles, body):
    source = f'#define NAME asm\n#define PASTE(a, b) a##b\nextern "C" void g() {{\n  {body}\n}}\n'
    result = compiled(compiles, k=source)
    assert result.artifact is None and "kernels/k.cu:4: error: assembly in host code" in result.message


def test_assembly_in_device_code_is_fine_and_reads_no_files_of_the_host(compiles, tmp_path):
    source = """
template <typename T> struct Op { __device__ T operator()(T a) const { T b; asm("add.f32 %0, %1, %1;" : "=f"(b) : "f"(a)); return b; } };
__device__ __forceinline__ float one(float a) { asm volatile("// nothing"); return a; }
__global__ void g(float* x) { auto l = [](float a) { asm volatile("// nothing"); return a; }; x[0] = l(one(Op<float>()(x[0]))); }
extern "C" void h(float* x) { g<<<1, 1>>>(x); }
"""
    assert compiled(compiles, k=source).artifact is not None
    secret = tmp_path / "secret"
    secret.write_text("the host's secret\n")
    for directive in (f'.include \\"{secret}\\"', f'\\n#include \\"{secret}\\"\\n'):
        result = compiled(compiles, k=source.replace("// nothing", directive))
        assert result.artifact is None and "host's secret" not in result.message


def test_line_directives_cannot_lead_the_scan_astray(compiles):
    source = '# 1 "/usr/include/stdio.h"\nextern "C" void g() { asm volatile("nop"); }\n'
    assert "refused: kernels/k.cu:1: sets file names" in compiled(compiles, k=source).message
    assert (
        host_assembly('# 7 "kernels/k.cu"\nint a;\n__asm__("nop");\n# 1 "x.h"\n__asm__("x");', {"kernels/k.cu"})
        == "kernels/k.cu:8"
    )
    assert (
        host_assembly('# 7 "kernels/k.cu"\nconst char* a = "asm(";\n# 1 "x.h"\n__asm__("x");', {"kernels/k.cu"}) is None
    )


@pytest.mark.parametrize(
    ("header", "words"),
    [
        ("torch/types.h", "includes torch/types.h; allowed: CUDA's own headers"),
        ("cub/cub.cuh", "includes cub/cub.cuh"),
        ("thrust/sort.h", "includes thrust/sort.h"),
        ("nvrtc.h", "includes nvrtc.h"),
    ],
)
def test_libraries_that_would_do_the_work_are_refused(compiles, header, words):
    assert words in compiled(compiles, k=f'#include <{header}>\nextern "C" void f() {{}}\n').message


def test_a_cpp_file_is_no_kernel_of_this_skill(compiles):
    result = compiles.compile("cuda", Candidate(files={"kernels/k.cpp": 'extern "C" void f() {}\n'}))
    assert "kernels/ holds no .cu file" in result.message


def test_missing_parts_of_the_machine_are_our_trouble_and_say_what_to_do(tmp_path, monkeypatch):
    unstated = CompileService(CompileConfig(cache_dir=tmp_path))
    cuda_toolkit.present_arch.cache_clear()
    with monkeypatch.context() as patched:
        patched.setenv("PATH", str(tmp_path))
        with pytest.raises(SandboxUnavailableError, match="compile.cuda_arch is not set"):
            compiled(unstated, k='extern "C" void f() {}\n')
    cuda_toolkit.toolkit.cache_clear()
    stated = CompileService(CompileConfig(cache_dir=tmp_path, cuda_arch="sm_90"))
    with monkeypatch.context() as patched:
        patched.setenv("PATH", str(tmp_path))
        with pytest.raises(SandboxUnavailableError, match="nvcc is not on PATH"):
            compiled(stated, k='extern "C" void f() {}\n')
    unknown = CompileService(CompileConfig(cache_dir=tmp_path, cuda_arch="sm_11"))
    with pytest.raises(SandboxUnavailableError, match="sm_11|compute_11"):
        compiled(unknown, k='extern "C" void f() {}\n')
