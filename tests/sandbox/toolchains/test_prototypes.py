from __future__ import annotations

import contextlib
import time

import pytest

from sandbox.toolchains.cxx_text import includes, strip_comments
from sandbox.toolchains.interface import Parameter, Prototype, PrototypeError, interface_of, read_interface
from sandbox.toolchains.prototypes import parse_prototypes


def names(source: str) -> list[str]:
    return [prototype.name for prototype in parse_prototypes("kernels/k.cpp", source)]


def test_pointers_scalars_and_qualifiers_are_read():
    (found,) = parse_prototypes(
        "k.cpp",
        'extern "C" void axpy(const float* __restrict__ x, float *y, std::int64_t n = 3,\n'
        "                     float scale, unsigned long int k, const uint8_t m[4]) noexcept {}",
    )
    assert found == Prototype(
        name="axpy",
        result="void",
        parameters=[
            Parameter("x", "float32", True),
            Parameter("y", "float32", True),
            Parameter("n", "int64", False),
            Parameter("scale", "float32", False),
            Parameter("k", "uint64", False),
            Parameter("m", "uint8", True),
        ],
    )


def test_only_definitions_with_c_linkage_count():
    source = """
    // extern "C" void commented(int n) {}
    static const char* text = "extern \\"C\\" void quoted(int n) {}";
    extern "C" void declared(int n);
    extern "C" int table[] = {1, 2};
    void plain(int n) {}
    extern "C" {
      static int helper(int q) { return q; }
      struct Pair { int a; int b; };
      int counter = 0;
      void inside(int n) { if (n) { counter = n; } }
      double other(void) { return 1'000; }
    }
    namespace a { extern "C" void nested() {} }
    """
    assert names(source) == ["inside", "other", "nested"]


@pytest.mark.parametrize(
    ("signature", "named"),
    [
        ("void f(std::vector<float> x)", "std::vector<float> x"),
        ("float* f(int n)", "returns 'float*'"),
        ("void f(float& n)", "float& n"),
        ("void f(at::Tensor n)", "at::Tensor n"),
        ("void f(float** n)", "float** n"),
        ("KERNEL(f)", "KERNEL(f)"),
        ("void f(void (*g)(int))", "(*g)"),
        ("void f(index_t n)", "index_t n"),
        ("void f(_Float16 h)", "_Float16 h"),
        ("void f(int n, float n)", "two parameters of one name"),
    ],
)
def test_a_signature_without_a_binding_is_named_with_its_line(signature, named):
    with pytest.raises(PrototypeError) as caught:
        parse_prototypes("kernels/k.cpp", f'\n\nextern "C" {signature} {{ }}')
    assert "kernels/k.cpp:3" in str(caught.value) and named in str(caught.value)


def test_the_interface_holds_what_the_object_exports_and_reads_back():
    found = parse_prototypes("k.cpp", 'extern "C" { void a(float* x) {} void b(int n) {} }')
    read = read_interface(interface_of(found, {"a"}, "cpp_kernels"))
    assert read.module == "cpp_kernels" and read.device == "cpu" and read.functions == found[:1]
    assert read_interface(interface_of(found, {"a"}, "cuda_kernels", device="cuda")).device == "cuda"


def test_cuda_launchers_are_part_of_the_abi_and_kernels_are_not():
    source = """
extern "C" __global__ void __launch_bounds__(256) kernel(const float* x) {}
extern "C" __device__ float helper(float x) { return x; }
extern "C" cudaError_t launch(const __half* x, __nv_bfloat16* y, int64_t n, cudaStream_t stream) { return cudaSuccess; }
"""
    (launch,) = parse_prototypes("k.cu", source)
    assert launch.name == "launch" and launch.result == "status"
    assert [(p.dtype, p.pointer) for p in launch.parameters] == [
        ("float16", True),
        ("bfloat16", True),
        ("int64", False),
        ("stream", False),
    ]
    with pytest.raises(PrototypeError, match="has no binding"):
        parse_prototypes("k.cu", 'extern "C" void f(__half x) {}')


def test_two_branches_of_a_condition_may_define_the_same_function():
    both = parse_prototypes(
        "k.cpp", '#ifdef X\nextern "C" void a(float* x) {}\n#else\nextern "C" void a(float* x) {}\n#endif'
    )
    assert len(read_interface(interface_of(both, {"a"}, "m")).functions) == 1
    different = parse_prototypes("k.cpp", 'extern "C" void a(float* x) {}\nextern "C" void a(int x) {}')
    with pytest.raises(PrototypeError, match="different parameters"):
        interface_of(different, {"a"}, "m")


def test_comments_are_blanked_and_lines_stay():
    source = 'int a; // one\n/* two\n three */ int b; const char* c = "// no comment";\nint \\\nd;'
    stripped = strip_comments(source)
    assert stripped.count("\n") == source.count("\n")
    assert "one" not in stripped and "three" not in stripped and '"";' in stripped and "int d;" in stripped


def test_includes_are_listed_with_their_lines():
    source = '#include <a.h> // x\n/* #include <no.h> */\n  # include "b.h"\n#include MACRO\nconst char* s = "#include <no.h>";\n'
    assert [(found.line, found.name, found.quoted) for found in includes(source)] == [
        (1, "a.h", False),
        (3, "b.h", True),
        (4, None, False),
    ]


@pytest.mark.parametrize(
    "piece", ['extern "C" {', 'R"(', 'extern "C" void f() {', "/*", "((", "#include <a>\n", "a\\\n", "'", '"']
)
def test_hostile_text_takes_no_time(piece):
    source = piece * (256 * 1024 // len(piece))
    started = time.monotonic()
    with contextlib.suppress(PrototypeError):
        parse_prototypes("k.cpp", source)
    includes(source)
    assert time.monotonic() - started < 3
