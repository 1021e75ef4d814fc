from __future__ import annotations

import subprocess

import pytest

from sandbox.elf import dynamic_symbols
from sandbox.skill import load_skill
from sandbox.symbols import _cuda_problem, _is_allowed_operator, _problem, check_symbols, qualified_name
from sandbox.toolchains.cpp import CppToolchain, Deadline
from sandbox.types import Artifact


@pytest.fixture
def artifact(tmp_path):
    """Compiles past the rules for sources, which would refuse most of these headers."""

    def build(source: str) -> Artifact:
        made = CppToolchain("cpp_kernels").build({"kernels/k.cpp": source}, tmp_path, Deadline(60))
        return Artifact(sha256="", arch="", shared_object=made.shared_object, interface=made.interface)

    return build


def refusal(artifact, body: str, headers: str = "") -> str | None:
    return check_symbols(load_skill("cpp"), artifact(f'{headers}\nextern "C" long f(const char* p) {{ {body} }}\n'))


def test_the_reader_agrees_with_nm(artifact, tmp_path):
    made = artifact(
        '#include <cmath>\n#include <vector>\n#include <string>\nextern "C" float f(float x) { std::vector<std::string> v(3); return std::tanh(x) + v.size(); }\n'
    )
    path = tmp_path / "k.so"
    path.write_bytes(made.shared_object)

    def nm(option: str) -> set[str]:
        lines = subprocess.run(
            ["nm", "-D", option, path], check=True, capture_output=True, text=True
        ).stdout.splitlines()
        return {line.split()[-1].split("@")[0] for line in lines}

    symbols = dynamic_symbols(made.shared_object)
    assert set(symbols.undefined) == nm("--undefined-only")
    assert symbols.exported == nm("--defined-only")
    assert symbols.undefined["tanhf"] == "libm.so.6" and "libm.so.6" in symbols.needed


def test_what_is_no_elf_object_is_an_error():
    with pytest.raises(ValueError, match="ELF"):
        dynamic_symbols(b"MZ" + bytes(200))
    with pytest.raises(ValueError, match="damaged|no dynamic"):
        dynamic_symbols(b"\x7fELF\x02\x01" + b"\xff" * 60)


def test_an_honest_kernel_passes(artifact):
    source = """
#include <omp.h>
#include <algorithm>
#include <atomic>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>
// dlopen("x"); system("y"); at::softmax
static const char* words = "dlopen system fork at::softmax";
extern "C" double f(const float* x, float* y, long n) {
  if (n < 0) throw std::invalid_argument(words);
  std::vector<float> scratch(n);
  float* block = static_cast<float*>(std::aligned_alloc(64, 4096));
  static thread_local long calls = 0;
  double sum = ++calls;
#pragma omp parallel for reduction(+ : sum)
  for (long i = 0; i < n; ++i) sum += y[i] = std::erf(std::exp(x[i])) + std::tanh(std::lgamma(x[i])) + omp_get_thread_num();
  std::memcpy(scratch.data(), x, n * sizeof(float));
  std::sort(scratch.begin(), scratch.end());
  std::thread worker([&] { scratch[0] = 1; });
  worker.join();
  std::free(block);
  std::fprintf(stderr, "%f\\n", sum);
  return sum;
}
"""
    assert check_symbols(load_skill("cpp"), artifact(source)) is None


@pytest.mark.parametrize(
    ("body", "headers", "named"),
    [
        ("return (long) dlopen(p, 2);", "#include <dlfcn.h>", "dlopen"),
        ("return (long) dlsym(nullptr, p);", "#include <dlfcn.h>", "dlsym"),
        ("return system(p);", "#include <cstdlib>", "system"),
        ("return fork();", "#include <unistd.h>", "fork"),
        ("return open(p, 0);", "#include <fcntl.h>", "open"),
        ('return (long) fopen(p, "r");', "#include <cstdio>", "fopen"),
        ("return write(1, p, 4);", "#include <unistd.h>", "write"),
        ("return socket(1, 1, 0);", "#include <sys/socket.h>", "socket"),
        ("_exit(0);", "#include <unistd.h>", "_exit"),
        ("std::exit(0);", "#include <cstdlib>", "exit"),
        ("return syscall(39);", "#include <unistd.h>", "syscall"),
        ("return mprotect((void*) p, 4096, 7);", "#include <sys/mman.h>", "mprotect"),
        ("return (long) signal(8, nullptr);", "#include <csignal>", "signal"),
        ("return ptrace(PTRACE_TRACEME, 0, 0, 0);", "#include <sys/ptrace.h>", "ptrace"),
        ("std::ifstream s(p); return s.get();", "#include <fstream>", "basic_ifstream"),
        ("return std::filesystem::exists(p);", "#include <filesystem>", "filesystem"),
        (
            "return Py_AddPendingCall ? 1 : PyRun_SimpleString(p);",
            'extern "C" int PyRun_SimpleString(const char*) __attribute__((weak));\nextern "C" int Py_AddPendingCall() __attribute__((weak));',
            "Py_AddPendingCall",
        ),
        (
            "return (long) softmax(p);",
            'long softmax(const char*) __asm__("_ZN2at4_ops11softmax_int4callERKNS_6TensorElN3c108optionalINS5_10ScalarTypeEEE") __attribute__((weak));',
            "softmax",
        ),
    ],
)
def test_taking_more_than_arithmetic_is_refused(artifact, body, headers, named):
    found = refusal(artifact, body, headers)
    assert found is not None and named in found


@pytest.mark.parametrize(
    "operator",
    [
        "empty_memory_format",
        "empty_like",
        "zeros",
        "zeros_like",
        "fill__Scalar",
        "copy_",
        "clone",
        "contiguous",
        "view",
        "reshape",
        "slice_Tensor",
        "select_int",
        "transpose_int",
        "to_dtype",
        "_to_copy",
        "as_strided",
        "split_Tensor",
        "expand",
        "squeeze_dim",
        "detach",
        "item",
        "unbind_int",
        "unsqueeze",
    ],
)
def test_allocation_views_and_copies_are_allowed_operators(operator):
    assert _is_allowed_operator(operator)


@pytest.mark.parametrize(
    "operator",
    [
        "softmax_int",
        "_softmax",
        "add_Tensor",
        "mul__Tensor",
        "matmul",
        "mm_out",
        "linear",
        "relu",
        "sum_dim_IntList",
        "cat",
        "index_select",
        "slice_scatter",
        "select_backward",
        "copy_sparse_to_sparse_",
        "to_mkldnn",
        "expm1",
        "t_copy",
        "view_copy",
        "sigmoid",
        "empty_quantized",
        "full_like_softmax",
        "conv2d",
        "native_layer_norm",
    ],
)
def test_operators_that_compute_are_not(operator):
    assert not _is_allowed_operator(operator)


@pytest.mark.parametrize(
    ("symbol", "path"),
    [
        ("_ZNK2at10TensorBase8data_ptrIfEEPT_v", ["at", "TensorBase", "data_ptr"]),
        ("_ZN2at3cpu8_softmaxERKNS_6TensorElb", ["at", "cpu", "_softmax"]),
        ("_ZN3c106detail14torchCheckFailEPKcS2_jS2_", ["c10", "detail", "torchCheckFail"]),
        ("_ZTVN5torch8autograd12AutogradMetaE", ["torch", "autograd", "AutogradMeta"]),
        ("_ZSt4cout", ["std", "cout"]),
        ("memcpy", []),
    ],
)
def test_the_qualified_name_is_read_from_the_mangled_one(symbol, path):
    assert qualified_name(symbol) == path


@pytest.mark.parametrize(
    "symbol",
    [
        "_ZN2at4_ops11softmax_int4callERKNS_6TensorElSt8optionalIN3c1010ScalarTypeEE",
        "_ZN2at3cpu8_softmaxERKNS_6TensorElb",
        "_ZN2at6native7softmaxERKNS_6TensorEl",
        "_ZN5torch3jit6Module7forwardEv",
        "_ZN3c1010Dispatcher13realSingletonEv",
        "_ZN3c104impl20TorchDispatchModeTLS9pop_stackEv",
        "_ZN5torch7LibraryC1ENS0_4KindE",
        "PyRun_SimpleString",
        "PyImport_ImportModule",
        "PyEval_GetFrame",
        "cblas_sgemm",
        "_ZN6dnnl_impl3runEv",
    ],
)
def test_an_extension_may_not_reach_operators_or_the_interpreter(symbol):
    assert _problem(symbol, None, plain_abi=False) is not None


@pytest.mark.parametrize(
    "symbol",
    [
        "_ZN2at4_ops10empty_like4callERKNS_6TensorE",
        "_ZNK2at10TensorBase8data_ptrIfEEPT_v",
        "PyErr_SetString",
        "_ZN3c106detail14torchCheckFailEPKcS2_jS2_",
        "_ZN8pybind116detail11type_casterIN2at6TensorEvE4loadENS_6handleEb",
        "_ZN3c104impl23ExcludeDispatchKeyGuardC1ENS_14DispatchKeySetE",
        "_ZN2at8internal15invoke_parallelElll",
        "_Py_Dealloc",
    ],
)
def test_what_torchs_own_headers_need_is_allowed(symbol):
    assert _problem(symbol, None, plain_abi=False) is None


@pytest.mark.parametrize(
    ("library", "allowed", "refused"),
    [
        (
            "libcudart.so.13",
            "__cudaLaunchKernel __cudaRegisterFatBinary cudaLaunchKernelExC cudaFuncSetAttribute cudaMemcpyAsync "
            "cudaMemsetAsync cudaMallocAsync cudaFree cudaGetLastError cudaPeekAtLastError cudaDeviceGetAttribute "
            "cudaOccupancyMaxActiveBlocksPerMultiprocessor cudaMemcpyToSymbolAsync",
            "cudaStreamCreate cudaEventRecord cudaGraphLaunch cudaLaunchHostFunc cudaStreamAddCallback cudaDeviceReset "
            "cudaStreamSetAttribute cudaDeviceSetLimit cudaGetDriverEntryPoint cudaMallocManaged cudaIpcOpenMemHandle "
            "cudaHostRegister cudaProfilerStop",
        ),
        (
            "libcublas.so.13",
            "cublasCreate_v2 cublasSetStream_v2 cublasSgemm_v2 cublasGemmEx cublasSgemmStridedBatched cublasSgemv_v2",
            "cublasSaxpy_v2 cublasSscal_v2 cublasSnrm2_v2 cublasStrsm_v2",
        ),
        ("libcublasLt.so.13", "cublasLtCreate cublasLtMatmul cublasLtMatmulDescCreate", "cublasLtLoggerSetFile"),
        (
            "libcudnn.so.9",
            "cudnnCreate cudnnSetStream cudnnSetTensor4dDescriptor cudnnConvolutionForward "
            "cudnnConvolutionBiasActivationForward cudnnGetConvolutionForwardAlgorithm_v7",
            "cudnnSoftmaxForward cudnnPoolingForward cudnnBatchNormalizationForwardInference cudnnRNNForward "
            "cudnnReduceTensor cudnnBackendExecute cudnnActivationForward",
        ),
    ],
)
def test_of_cudas_libraries_launches_products_and_convolutions_are_allowed(library, allowed, refused):
    assert [name for name in allowed.split() if _cuda_problem(name, library) is not None] == []
    assert [name for name in refused.split() if _cuda_problem(name, library) is None] == []
