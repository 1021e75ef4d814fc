from __future__ import annotations

import subprocess
import sys
import textwrap

import pytest

from sandbox.compile import CompileService
from sandbox.config import CompileConfig
from sandbox.skill import load_skill
from sandbox.symbols import check_symbols
from sandbox.types import Artifact, Candidate

pytestmark = pytest.mark.slow  # torch's headers are precompiled once a machine: half a minute

HEAD = '#include <torch/types.h>\n#include <torch/csrc/utils/pybind.h>\n#include "../binding_registry.h"\n'
TWICE = (
    HEAD
    + """
#include <cmath>
#include <optional>
#include <tuple>
#include <vector>
#include <ATen/Parallel.h>
static std::tuple<at::Tensor, at::Tensor> twice(const torch::Tensor& x, std::optional<torch::Tensor> bias, double scale) {
  TORCH_CHECK(x.scalar_type() == torch::kFloat32, "float32 expected, got ", x.scalar_type());
  auto contiguous = x.contiguous();
  auto y = torch::empty_like(contiguous);
  auto z = torch::zeros({x.size(0)}, x.options());
  const float* in = contiguous.data_ptr<float>();
  float* out = y.data_ptr<float>();
  at::parallel_for(0, x.numel(), 1024, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) out[i] = static_cast<float>(scale) * in[i];
  });
  if (bias.has_value()) y.copy_(bias->view({-1}).expand_as(y));
  return {y.transpose(0, 1), z};
}
static void bind_twice(pybind11::module& m) {
  m.def("twice", &twice, py::arg("x"), py::arg("bias") = py::none(), py::arg("scale") = 2.0, py::call_guard<py::gil_scoped_release>());
}
REGISTER_BINDING(twice, bind_twice);
"""
)
SOFTMAX = (
    HEAD
    + """
#include <ATen/ops/softmax.h>
// a comment about at::empty_like does not help
static torch::Tensor rows(torch::Tensor x) { return at::softmax(x, -1); }
static void bind_rows(pybind11::module& m) { m.def("rows", &rows); }
REGISTER_BINDING(rows, bind_rows);
"""
)


@pytest.fixture(scope="module")
def compiles() -> CompileService:
    return CompileService(CompileConfig())  # the machine's own cache: the precompiled header is shared with real runs


@pytest.fixture(scope="module")
def twice(compiles) -> Artifact:
    result = compiles.compile("cpp_agent", Candidate(files={"kernels/twice.cpp": TWICE}))
    assert result.artifact is not None, result.message
    return result.artifact


def test_a_registered_binding_computes(twice, tmp_path):
    (tmp_path / "cpu_extension.so").write_bytes(twice.shared_object)
    program = textwrap.dedent("""
        import sys, torch
        from sandbox.bindings import load_module
        kernels = load_module("cpu_extension", sys.argv[1], "")
        x = torch.randn(3, 4)
        y, z = kernels.twice(x.t())
        torch.testing.assert_close(y, 2 * x)
        assert z.tolist() == [0.0] * 4
        try:
            kernels.twice(x.double())
        except RuntimeError as error:
            assert "float32 expected, got Double" in str(error)
        else:
            raise AssertionError("a wrong dtype passed")
    """)
    subprocess.run([sys.executable, "-c", program, str(tmp_path / "cpu_extension.so")], check=True, timeout=120)


def test_honest_use_of_torch_passes_the_symbol_scan(twice):
    assert check_symbols(load_skill("cpp_agent"), twice) is None


def test_an_operator_of_torch_is_found_in_the_symbols(compiles):
    result = compiles.compile("cpp_agent", Candidate(files={"kernels/rows.cpp": SOFTMAX}))
    assert result.artifact is not None, result.message
    assert "operator softmax" in (check_symbols(load_skill("cpp_agent"), result.artifact) or "")


def test_errors_and_undefined_functions_name_the_kernel(compiles):
    broken = HEAD + "static torch::Tensor f(torch::Tensor x) { return y; }\n"
    result = compiles.compile("cpp_agent", Candidate(files={"kernels/f.cpp": broken}))
    assert result.artifact is None and result.message.startswith("kernels/f.cpp:4:50: error: 'y' was not declared")
    missing = HEAD + (
        "float elsewhere(float);\nstatic double f(double x) { return elsewhere(x); }\n"
        'static void b(pybind11::module& m) { m.def("f", &f); }\nREGISTER_BINDING(f, b);\n'
    )
    result = compiles.compile("cpp_agent", Candidate(files={"kernels/f.cpp": missing}))
    assert result.artifact is None and "undefined reference to `elsewhere(float)'" in result.message
