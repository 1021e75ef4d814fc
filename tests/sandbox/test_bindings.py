from __future__ import annotations

import pytest
import torch

from sandbox.bindings import load_module
from sandbox.compile import CompileService
from sandbox.config import CompileConfig
from sandbox.types import Candidate

SOURCE = """
#include <cstdint>
#include <omp.h>
extern "C" void axpy(const float* x, float* y, int64_t n, float a) {
#pragma omp parallel for
  for (int64_t i = 0; i < n; ++i) y[i] += a * x[i];
}
extern "C" double mean(const double* x, int n) { double s = 0; for (int i = 0; i < n; ++i) s += x[i]; return s / n; }
extern "C" int64_t dtypes(const int8_t* a, const uint8_t* b, const int16_t* c, const int32_t* d, const int64_t* e,
                          const bool* f, const uint16_t* g, const _Float16* h) {
  return a[0] + b[0] + c[0] + d[0] + e[0] + f[0] + (g != nullptr) + (int64_t) (float) h[0];
}
extern "C" bool is_null(const void* p) { return p == nullptr; }
extern "C" int threads() { return omp_get_max_threads(); }
extern "C" long lambda(long in, bool is) { return is ? in : -in; }
"""


@pytest.fixture(scope="module")
def kernels(tmp_path_factory):
    folder = tmp_path_factory.mktemp("bindings")
    result = CompileService(CompileConfig(cache_dir=folder / "cache")).compile(
        "cpp", Candidate(files={"kernels/k.cpp": SOURCE})
    )
    assert result.artifact is not None, result.message
    (folder / "k.so").write_bytes(result.artifact.shared_object)
    return load_module("cpp_kernels", folder / "k.so", result.artifact.interface)


def test_a_kernel_computes_on_tensors(kernels):
    x, y = torch.arange(1000.0), torch.ones(1000)
    assert kernels.axpy(x, y, x.numel(), 0.5) is None
    torch.testing.assert_close(y, 1 + 0.5 * x)
    kernels.axpy(x=x, y=y, n=10, a=1)
    assert kernels.mean(torch.tensor([1.0, 2.0, 6.0], dtype=torch.float64), 3) == 3.0


def test_parameters_and_views_that_are_contiguous_pass(kernels):
    x = torch.nn.Parameter(torch.ones(4, 4))
    y = torch.zeros(4, 4)
    kernels.axpy(x[1:2], y[3], 4, 2.0)
    assert y[3].tolist() == [2.0] * 4 and y[:3].abs().sum() == 0


def test_every_dtype_has_its_pointer(kernels):
    one = torch.ones(2)
    tensors = [
        one.to(dtype)
        for dtype in (
            torch.int8,
            torch.uint8,
            torch.int16,
            torch.int32,
            torch.int64,
            torch.bool,
            torch.bfloat16,
            torch.float16,
        )
    ]
    assert kernels.dtypes(*tensors) == 8
    assert kernels.is_null(None) is True and kernels.is_null(one) is False


@pytest.mark.parametrize(
    ("arguments", "error", "said"),
    [
        (lambda x, y: (x, y, 4), TypeError, "missing 1 required positional argument: 'a'"),
        (lambda x, y: (x, y, 4, 1.0, 2), TypeError, "axpy() takes 4 positional arguments"),
        (
            lambda x, y: (x.double(), y, 4, 1.0),
            TypeError,
            "cpp_kernels.axpy: x is float32* and takes a tensor of float32, got torch.float64",
        ),
        (lambda x, y: (x, y[::2], 2, 1.0), TypeError, "call .contiguous() first"),
        (lambda x, y: (x.to("meta"), y, 4, 1.0), TypeError, "takes a CPU tensor"),
        (lambda x, y: (x.tolist(), y, 4, 1.0), TypeError, "takes a torch.Tensor or None, got list"),
        (lambda x, y: (x, y, 4.0, 1.0), TypeError, "n is int64 and takes an int, got float"),
        (lambda x, y: (x, y, 2**63, 1.0), OverflowError, "n is int64 and cannot hold"),
        (lambda x, y: (x, y, 4, "1"), TypeError, "a takes a float or int, got str"),
    ],
)
def test_a_wrong_call_says_which_argument_and_why(kernels, arguments, error, said):
    with pytest.raises(error) as caught:
        kernels.axpy(*arguments(torch.ones(4), torch.zeros(4)))
    assert said in str(caught.value)


def test_names_that_python_reserves_still_work(kernels):
    assert getattr(kernels, "lambda")(3, False) == -3
    assert getattr(kernels, "lambda")(in_=3, is_=True) == 3


def test_kernels_share_torchs_thread_pool(kernels):
    before = torch.get_num_threads()
    try:
        torch.set_num_threads(1)
        assert kernels.threads() == 1
    finally:
        torch.set_num_threads(before)


def test_an_object_that_does_not_load_is_an_import_error(tmp_path):
    (tmp_path / "k.so").write_bytes(b"nothing")
    with pytest.raises(ImportError):
        load_module("cpp_kernels", tmp_path / "k.so", '{"module":"cpp_kernels","functions":[]}')
    with pytest.raises(ImportError):
        load_module("cpu_extension", tmp_path / "k.so", "")
