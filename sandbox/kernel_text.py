"""What the text of a kernel file may say, by skill: which headers it includes, and no assembly for the host.

Compilers run on the host: an include or an assembler directive could otherwise read its files to the agent. PTX in
CUDA sources is allowed; sandbox.toolchains.cuda looks at what is left for the host once device code is taken out.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from sandbox.skill import Skill
from sandbox.toolchains.cxx_text import includes, strip_comments

_STANDARD_HEADERS = """
    algorithm any array atomic barrier bit bitset cassert cctype cerrno cfenv cfloat charconv chrono cinttypes
    ciso646 climits cmath codecvt compare complex concepts condition_variable csetjmp cstdalign cstdarg cstdbool
    cstddef cstdint cstdio cstdlib cstring ctime cuchar cwchar deque exception forward_list functional future
    initializer_list iomanip ios iosfwd iostream istream iterator latch limits list locale map memory
    memory_resource mutex new numbers numeric optional ostream queue random ranges ratio regex scoped_allocator
    semaphore set shared_mutex span sstream stack stdexcept streambuf string string_view system_error thread tuple
    type_traits typeindex typeinfo unordered_map unordered_set utility valarray variant vector version assert.h
    ctype.h errno.h fenv.h float.h inttypes.h limits.h math.h stdalign.h stdarg.h stdbool.h stddef.h stdint.h
    stdio.h stdlib.h string.h time.h omp.h immintrin.h x86intrin.h xmmintrin.h emmintrin.h pmmintrin.h tmmintrin.h
    smmintrin.h nmmintrin.h avxintrin.h arm_neon.h arm_sve.h
"""
_TORCH_HEADERS = re.compile(r"(torch|ATen|c10|pybind11)/[\w./-]+|Python\.h")
_CUDA_HEADERS = re.compile(
    r"(cuda|cuda_runtime|cuda_runtime_api|cuda_fp16|cuda_bf16|cuda_fp8|cuda_fp6|cuda_fp4|cuda_pipeline|cuda_awbarrier"
    r"|cuda_pipeline_primitives|cuda_awbarrier_primitives|cooperative_groups|mma|math_constants|vector_types"
    r"|vector_functions|driver_types|device_launch_parameters|cuComplex|library_types|cublas_v2|cublasLt"
    r"|cudnn\w*)\.h|cooperative_groups/[\w/]+\.h|cuda/[\w/]+|nv/target"
)
_BINDING_HEADERS = ("../binding_registry.h", "binding_registry.h")
_ASSEMBLY = re.compile(r"(?<!\w)(__asm__|__asm|asm)(?!\w)|##|%:%:")
_LINE_DIRECTIVE = re.compile(r"^[ \t]*(?:#|%:)[ \t]*(?:line\b|\d)", re.MULTILINE)
_CUDA_SUFFIXES = (".cu", ".cuh")


@dataclass(frozen=True, slots=True)
class Rules:
    """File names in kernels/ of one skill."""

    suffixes: tuple[str, ...]
    needed: tuple[str, ...]
    """At least one file ends in one of these."""


_CPP_SOURCES, _HEADERS = (".cpp", ".cc", ".cxx"), (".h", ".hpp")
_RULES = {
    "cpp": Rules((*_CPP_SOURCES, *_HEADERS, *_CUDA_SUFFIXES), _CPP_SOURCES),
    "cpp_agent": Rules((*_CPP_SOURCES, *_HEADERS, *_CUDA_SUFFIXES), _CPP_SOURCES),
    "cuda": Rules((*_CUDA_SUFFIXES, *_HEADERS), (".cu",)),
    "cuda_agent": Rules((*_CUDA_SUFFIXES, *_CPP_SOURCES, *_HEADERS), (".cu",)),
}


def rules_of(skill: Skill) -> Rules:
    return _RULES[skill.name]


def check_kernel_text(skill: Skill, path: str, text: str, kernels: dict[str, str]) -> str | None:
    """`file:line: problem`, or None; `kernels` are all files of kernels/ by path."""
    problem = _check_includes(skill, path, text, kernels)
    if problem is None and skill.toolchain == "cuda":
        problem = _check_line_directives(path, text)
    if problem is None and not _goes_to_nvcc(skill, path):
        problem = _check_assembly(path, text)
    return problem


def _goes_to_nvcc(skill: Skill, path: str) -> bool:
    """nvcc's host part is looked at after preprocessing; a header of the plain skill has no other reader."""
    return skill.toolchain == "cuda" and (path.endswith(_CUDA_SUFFIXES) or skill.plain_abi)


def _check_includes(skill: Skill, path: str, text: str, kernels: dict[str, str]) -> str | None:
    is_cuda, is_cuda_source = skill.toolchain == "cuda", path.endswith(_CUDA_SUFFIXES)
    own = {
        name.removeprefix("kernels/")
        for name in kernels
        if not (is_cuda and name.endswith(_CUDA_SUFFIXES) and not _goes_to_nvcc(skill, path))
    }
    takes_torch = not skill.plain_abi and not (is_cuda and is_cuda_source)
    for include in includes(text):
        name = include.name
        if name is None:
            return f"{path}:{include.line}: includes through a macro; write the header's name out"
        if name in _STANDARD_HEADERS.split() or (include.quoted and name.removeprefix("./") in own):
            continue
        if is_cuda and _CUDA_HEADERS.fullmatch(name):
            continue
        if takes_torch and (name in _BINDING_HEADERS or (_TORCH_HEADERS.fullmatch(name) and ".." not in name)):
            continue
        return f"{path}:{include.line}: includes {name}; allowed: {_allowed_headers(skill, path)}"
    return None


def _allowed_headers(skill: Skill, path: str) -> str:
    own = "the C and C++ standard headers, omp.h, immintrin.h and your own files in kernels/"
    if skill.toolchain == "cuda":
        own = (
            "CUDA's own headers (cuda_runtime.h, cuda_fp16.h, cooperative_groups.h, mma.h, cublas_v2.h, cudnn.h, …), "
            + ("the C and C++ standard headers and your own files in kernels/")
        )
        if not skill.plain_abi and path.endswith(_CUDA_SUFFIXES):
            return own + "; torch's headers belong into kernels/*_binding.cpp, where they are precompiled"
    if skill.plain_abi:
        return own + "; this skill has a plain C ABI without torch headers"
    return own + ", torch's headers and ../binding_registry.h"


def _check_line_directives(path: str, text: str) -> str | None:
    match, line = _first(_LINE_DIRECTIVE, text)
    if match is None:
        return None
    return f"{path}:{line}: sets file names or line numbers (#line); leave them as they are"


def _check_assembly(path: str, text: str) -> str | None:
    match, line = _first(_ASSEMBLY, text)
    if match is None:
        return None
    if match[1] is None:  # pasting could spell `asm` where no scan of the text sees it
        return f"{path}:{line}: pastes tokens (##); write the names out"
    return f"{path}:{line}: uses inline assembly; write intrinsics (immintrin.h) instead"


def _first(pattern: re.Pattern[str], text: str) -> tuple[re.Match[str] | None, int]:
    """The first match outside of comments, and its line."""
    stripped = strip_comments(text)
    match = pattern.search(stripped)
    return match, stripped.count("\n", 0, match.start()) + 1 if match else 0
