from __future__ import annotations

import re

import pytest
from binding_forms import FORMS, THIN, WHOLE, answers

from sandbox.compile import CompileService
from sandbox.config import CompileConfig
from sandbox.skill import load_skill
from sandbox.symbols import check_symbols
from sandbox.toolchains.thin_bindings.errors import are_of_the_author
from sandbox.types import Candidate

NAMES = frozenset({"class_", "softmax", "y"})
BIND = 'static void bind(pybind11::module& m) {{ m.def("f", &f{more}); }}\nREGISTER_BINDING(f, bind);\n'


@pytest.fixture(scope="module")
def compiles() -> CompileService:
    return CompileService(CompileConfig())  # the machine's own cache: precompiled headers are shared with real runs


def compiled(compiles: CompileService, *texts: str):
    return compiles.compile("cpp_agent", Candidate(files={f"kernels/f{n}.cpp": text for n, text in enumerate(texts)}))


def is_thin(library: bytes) -> bool:
    """Whether the part that is compiled once lies in the object."""
    return b"N8pybind114thin" in library


@pytest.mark.slow
def test_thin_bindings_do_what_pybind11_does_in_every_form(compiles, tmp_path):
    found = {}
    for name, head in (("thin", THIN), ("whole", WHOLE)):
        result = compiled(compiles, head + FORMS)
        assert result.artifact is not None, result.message
        assert is_thin(result.artifact.shared_object) == (name == "thin")
        library = tmp_path / name / "cpu_extension.so"
        library.parent.mkdir()
        library.write_bytes(result.artifact.shared_object)
        found[name] = answers(library)
        assert check_symbols(load_skill("cpp_agent"), result.artifact) is None
    assert found["thin"] == found["whole"]
    assert found["whole"]["k.scaled(x, 3)"].startswith("tensor([[ 0.,  3.,  6.]")
    assert found["whole"]["k.numbers(1.5)"].startswith("TypeError: numbers(): incompatible function arguments.")


@pytest.mark.slow
@pytest.mark.parametrize(
    "text",
    [
        "static py::list f(py::list x) { return x; }\n" + BIND.format(more=""),
        "static double f(double x) { return x; }\n"
        'static void bind(pybind11::module& m) { int n = 3; m.def("f", [n](double x) { return f(x) * n; }); m.def("g", &f); }\n'
        "REGISTER_BINDING(f, bind);\n",
        "struct Pair { int a, b; };\nstatic int f(Pair p) { return p.a; }\n"
        'static void bind(pybind11::module& m) { py::class_<Pair>(m, "Pair").def(py::init<>()); m.def("f", &f); }\n'
        "REGISTER_BINDING(f, bind);\n",
        "static torch::Tensor f(torch::Tensor x) { return x + torch::relu(x); }\n" + BIND.format(more=""),
        "static double f(double x) { return Py_REFCNT(Py_None) > 0 ? x : 0; }\n" + BIND.format(more=""),
        "static double f(double x) { return x; }\n" + BIND.format(more=", py::return_value_policy::copy"),
    ],
    ids=["object", "capture", "class", "operators", "macro", "policy"],
)
def test_what_thin_bindings_lack_is_compiled_with_the_whole_headers(compiles, text):
    result = compiled(compiles, THIN + text)
    assert result.artifact is not None, result.message
    assert not is_thin(result.artifact.shared_object)


@pytest.mark.slow
@pytest.mark.parametrize(
    "include",
    ["torch/extension.h", "torch/all.h", "ATen/ATen.h", "pybind11/stl.h", "c10/util/Half.h", "ATen/ops/empty.h"],
)
def test_usual_headers_do_not_need_the_whole_ones(compiles, include):
    text = f"#include <{include}>\n{THIN}static at::Tensor f(at::Tensor x) {{ return torch::empty_like(x); }}\n"
    result = compiled(compiles, text + BIND.format(more=""))
    assert result.artifact is not None and is_thin(result.artifact.shared_object), result.message


@pytest.mark.slow
@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("double f(double x) { return x }", "expected ';' before '}' token"),
        ("double f(double x) { return blocksize_of_mine * x; }", "'blocksize_of_mine' was not declared in this scope"),
        ("float f(at::Tensor x) { return x.data_pointer(); }", "'class at::Tensor' has no member named 'data_pointer'"),
        ("double f(torch::Tensor x) { return torch::nonesuch(x); }", "'nonesuch' is not a member of 'torch'"),
        ("py::nonesuch f(double x) { return x; }", "'nonesuch' in namespace 'py' does not name a type"),
    ],
)
def test_an_error_is_the_same_with_either_headers(compiles, line, message):
    thin, whole = (compiled(compiles, f"{head}{line}\n{BIND.format(more='')}") for head in (THIN, WHOLE))
    assert thin.artifact is None and whole.artifact is None
    first, *_ = thin.message.splitlines()
    assert re.match(r"kernels/f0.cpp:5:\d+: error: ", first) and message in first
    assert whole.message == thin.message


@pytest.mark.slow
def test_an_undefined_function_is_named_once_and_files_share_a_helper(compiles):
    shared = "double helper(double);\nstatic double f(double x) { return helper(x); }\n" + BIND.format(more="")
    result = compiled(compiles, THIN + shared)
    assert result.artifact is None and result.message == "link error: undefined reference to `helper(double)'"
    result = compiled(compiles, THIN + shared, "double helper(double x) { return std::sqrt(x); }\n")
    assert result.artifact is not None and is_thin(result.artifact.shared_object), result.message


@pytest.mark.parametrize(
    ("output", "own"),
    [
        ("kernels/a.cpp:4:2: error: expected ';' before '}' token\n    4 | x\n", True),
        ("kernels/a.cpp:4:2: error: 'mine' was not declared in this scope\n", True),
        ("kernels/a.cpp:4:2: error: 'y' was not declared in this scope; did you mean 'x'?\n", False),
        ("kernels/a.cpp:4:2: error: 'mine' is not a member of 'torch'\n", True),
        ("kernels/a.cpp:4:2: error: 'softmax' is not a member of 'at'\n", False),
        ("kernels/a.cpp:4:2: error: 'mine' in namespace 'py' does not name a type\n", True),
        ("kernels/a.cpp:4:2: error: invalid conversion from 'const float*' to 'float*' [-fpermissive]\n", True),
        ("kernels/a.cpp:4:2: error: cannot convert 'at::Tensor' to 'float' in return\n", False),
        ("kernels/a.cpp:4:2: error: 'class_' is not a member of 'py'\nkernels/a.cpp:5:1: error: expected ';'\n", False),
        ("/thin/bindings.h:9:1: error: expected ';' before '}' token\n", False),
        ("kernels/a.cpp:9:1: error: 'class at::Tensor' has no member named 'siz'; did you mean 'size'?\n", True),
        ("link error: undefined reference to `mine(int)'", True),
        ("link error: undefined reference to `at::softmax(at::Tensor const&)'", False),
        ("the compiler failed without a message", False),
    ],
)
def test_errors_of_the_author_are_told_from_those_of_thin_headers(output, own):
    assert are_of_the_author(output, NAMES) == own
