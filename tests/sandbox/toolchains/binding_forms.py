"""Functions bound in many ways, and calls of them, right and wrong: what thin bindings and pybind11 have to agree on."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

INCLUDES = '#include <torch/types.h>\n{more}#include <torch/csrc/utils/pybind.h>\n#include "../binding_registry.h"\n'
THIN = INCLUDES.format(more="#include <vector>\n")
WHOLE = INCLUDES.format(more="#include <pybind11/functional.h>\n")
"""The second has a header that thin bindings do not stand in for; lines count alike."""

FORMS = """
#include <cmath>
#include <optional>
#include <stdexcept>
#include <string>
#include <tuple>
#include <vector>

using torch::Tensor;

static Tensor scaled(const Tensor& x, double factor) {
  TORCH_CHECK(x.scalar_type() == torch::kFloat32, "float32 expected, got ", x.scalar_type());
  Tensor y = torch::empty_like(x);
  for (int64_t i = 0; i < x.numel(); ++i) y.data_ptr<float>()[i] = static_cast<float>(factor) * x.data_ptr<float>()[i];
  return y;
}
static int64_t users(Tensor x) { return x.use_count(); }
static Tensor& same(Tensor& x) { return x; }
static void fill(Tensor x, float value) { x.fill_(value); }
static double numbers(int64_t a, int b, bool c, float d, long long e, unsigned f, size_t g) {
  return a + 2.0 * b + 4.0 * c + 8.0 * d + 16.0 * e + 32.0 * f + 64.0 * g;
}
static std::string text(const std::string& given, std::optional<std::string> more) { return given + more.value_or("!"); }
static std::vector<Tensor> reversed(std::vector<Tensor> all) { return {all.rbegin(), all.rend()}; }
static std::tuple<Tensor, int64_t, bool> three(const Tensor& x) { return {x, x.dim(), x.defined()}; }
static std::pair<double, std::optional<Tensor>> two(std::optional<Tensor> x) { return {0.5, x}; }
static std::tuple<> nothing() { return {}; }
static std::vector<int64_t> shape(at::IntArrayRef sizes, const std::vector<int64_t>& more) {
  std::vector<int64_t> all = sizes.vec();
  all.insert(all.end(), more.begin(), more.end());
  return all;
}
static std::vector<double> doubles(std::vector<double> a, const std::vector<float>& b, std::vector<int> c, std::vector<bool> d) {
  a.insert(a.end(), b.begin(), b.end());
  a.insert(a.end(), c.begin(), c.end());
  a.insert(a.end(), d.begin(), d.end());
  return a;
}
static at::ScalarType kind(at::ScalarType given, at::Device device, const at::Scalar& number) {
  return device.is_cpu() && number.isIntegral(false) ? given : torch::kBool;
}
static Tensor options(double a, std::optional<double> b, const std::string& mode, bool flag, std::vector<int64_t> sizes,
                      at::ScalarType dtype, std::optional<Tensor> bias) {
  TORCH_CHECK(!bias.has_value() || mode == "bias", mode);
  return torch::full(sizes, a + b.value_or(0.25) + flag, torch::TensorOptions().dtype(dtype));
}
static std::string either(int64_t) { return "int"; }
static std::string either_tensor(const Tensor&) { return "Tensor"; }
static std::string either_text(const std::string&) { return "str"; }
static float magnitude(float x) { return abs(x) + fabs(x) + std::abs(x); }
static void fails(int64_t how) {
  if (how == 0) throw std::runtime_error("runtime");
  if (how == 1) throw std::invalid_argument("invalid");
  if (how == 2) throw std::out_of_range("out");
  TORCH_CHECK_VALUE(how == 3, "value ", how);
  TORCH_CHECK_INDEX(false, "index");
}
static Tensor unlocked(const Tensor& x) noexcept {
  py::gil_scoped_release released;
  return x;
}

static void bind(pybind11::module& m) {
  using namespace pybind11::literals;
  m.def("scaled", &scaled, "x times factor", py::arg("x"), py::arg("factor") = 2.0);
  m.def("users", users);
  m.def("same", &same);
  m.def("fill", &fill, py::arg("x"), py::arg("value"), py::call_guard<py::gil_scoped_release>());
  m.def("numbers", &numbers, "a"_a, "b"_a = 1, "c"_a = true, "d"_a = 0.5f, "e"_a = 1LL, "f"_a = 2u, "g"_a = size_t{3});
  m.def("exact", &numbers, py::arg("a").noconvert(), py::arg("b").noconvert(), py::arg("c").noconvert(),
        py::arg("d").noconvert(), py::arg("e"), py::arg("f"), py::arg("g"));
  m.def("text", &text, py::arg("given") = "dflt", py::arg("more") = py::none());
  m.def("reversed", &reversed, py::doc("the other way round"));
  m.def("three", &three).def("two", &two, py::arg("x") = std::nullopt);
  m.def("present", &three, py::arg("x").none(false));
  m.def("nothing", &nothing);
  m.def("shape", &shape, py::arg("sizes"), py::arg("more") = std::vector<int64_t>{7, 8});
  m.def("doubles", &doubles);
  m.def("kind", &kind, py::arg("given"), py::arg("device"), py::arg("number"));
  m.def("options", &options, py::arg("a"), py::arg("b") = py::none(), py::arg("mode") = std::string("plain"),
        py::arg("flag") = false, py::arg("sizes") = std::vector<int64_t>{2}, py::arg("dtype") = torch::kFloat32,
        py::arg("bias") = Tensor());
  m.def("either", &either);
  m.def("either", &either_tensor, "of a tensor");
  m.def("either", &either_text, py::arg("named"));
  m.def("magnitude", &magnitude);
  m.def("fails", &fails);
  m.def("unlocked", &unlocked);
  m.def("lambda", [](const Tensor& x, int64_t dim) { return x.size(dim); }, py::arg("x"), py::arg("dim") = -1);
}
REGISTER_BINDING(forms, bind);
"""

CALLS = """
k.scaled(x); k.scaled(x, 3); k.scaled(x=x, factor=0.5); k.scaled(factor=1.5, x=x); k.scaled(x.double())
k.scaled(); k.scaled(x, 1, 2); k.scaled(x, y=1); k.scaled(x, "3"); k.scaled([1.0]); k.scaled(None); k.scaled(x, None)
k.scaled(x, torch.tensor(2.0)); k.scaled(x, numpy.float32(2)); k.scaled(torch.nn.Parameter(x)); k.scaled(x, True)
k.users(x); k.users(None); k.same(x) is x; k.same(torch.nn.Parameter(x)).requires_grad
k.fill(x.clone(), 3); k.fill(x.clone(), value=2.5); k.fill(value=1); k.fill(x.clone(), 1e300)
k.numbers(1); k.numbers(1, 2, False, 3.0, 4, 5, 6); k.numbers(a=2, g=9); k.numbers(1.5); k.numbers(True)
k.numbers(2**63); k.numbers(1, 2**31); k.numbers(1, f=-1); k.numbers(1, g=-1); k.numbers(1, c=None); k.numbers(1, c=1)
k.numbers(1, c=numpy.bool_(True)); k.numbers(numpy.int64(4)); k.numbers(torch.tensor(5)); k.numbers("1"); k.numbers(1, a=2)
k.exact(1, 2, True, 0.5, 1, 1, 1); k.exact(1, 2, 1, 0.5, 1, 1, 1); k.exact(1, 2, True, 1, 1, 1, 1)
k.exact(numpy.int32(1), 2, True, 0.5, 1, 1, 1); k.exact(1, 2, True, 0.5, 1, 1)
k.text(); k.text("a"); k.text("a", "b"); k.text(more=None); k.text(b"bytes"); k.text(1); k.text("é\\0")
k.reversed([x, -x]); k.reversed((x,)); k.reversed([]); k.reversed(x); k.reversed([x, None]); k.reversed([x, 1]); k.reversed("ab")
k.three(x); type(k.three(x)); k.three(None); k.present(x); k.present(None); k.two(); k.two(x); k.two(None); k.two(3)
k.nothing(); k.nothing(1)
k.shape([1, 2]); k.shape((1, 2), [3]); k.shape(x.shape); k.shape([1.5]); k.shape(3); k.shape([], []); k.shape([1], (2.0,))
k.doubles([1, 2.5], [0.5], [3], [True, False]); k.doubles([], [], [], []); k.doubles(["a"], [], [], []); k.doubles([], [], [1.5], [])
k.doubles(range(2), (1,), {3}, [0]); k.doubles(numpy.ones(2), [], [], [])
k.kind(torch.float16, torch.device("cpu"), 1); k.kind(torch.int8, "cpu", 1); k.kind(torch.int8, torch.device("cpu"), 1.5); k.kind(int, torch.device("cpu"), 1)
k.kind(torch.int8, torch.device("cpu"), None); k.kind(torch.int8, torch.device("meta"), 1)
k.options(1.0); k.options(1, 2, "m", True, [3], torch.float64); k.options(1, sizes=(1, 2), dtype=torch.int32); k.options(1, bias=x)
k.options(1, mode="bias", bias=x); k.options(1, None, None); k.options(1, dtype="float32"); k.options(1, flag=0)
k.either(1); k.either(x); k.either("a"); k.either(1.5); k.either(None); k.either(named="a"); k.either([1]); k.either()
k.magnitude(-0.75); k.magnitude(2); k.magnitude("x")
k.fails(0); k.fails(1); k.fails(2); k.fails(3); k.fails(4)
k.unlocked(x); getattr(k, "lambda")(x); getattr(k, "lambda")(x, 0); getattr(k, "lambda")(x, dim=5)
[(name, getattr(k, name).__doc__, getattr(k, name).__name__) for name in sorted(dir(k)) if not name.startswith("_")]
"""

_PROGRAM = """
import json, numpy, sys, torch
from sandbox.bindings import load_module
x = torch.arange(6, dtype=torch.float32).reshape(2, 3)
k = load_module("cpu_extension", sys.argv[1], "")
answers = {}
for call in json.load(sys.stdin):
    try:
        answers[call] = repr(eval(call))
    except Exception as error:
        answers[call] = f"{type(error).__name__}: {error}"
json.dump(answers, sys.stdout)
"""


def answers(library: Path) -> dict[str, str]:
    """What each of CALLS returns or raises, in a process of its own."""
    calls = [call for line in CALLS.strip().splitlines() for call in line.split("; ")]
    ran = subprocess.run(
        [sys.executable, "-c", _PROGRAM, str(library)],
        input=json.dumps(calls),
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert ran.returncode == 0, ran.stderr
    return json.loads(ran.stdout)
