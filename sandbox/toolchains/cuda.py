"""nvcc toolchain of the `cuda` skill: kernels behind a plain C ABI, no torch header, no GPU needed to compile.

    kernels/a.cu ─► nvcc -cuda ─► host code with the embedded cubin ─► no assembly of its own? ─► g++ ─┐
    kernels/b.cu ─► …                                                                                  ├─► one object
                                                              cudart, cuBLAS, cuDNN as shared libraries┘

The two steps are what nvcc does in one. Between them the host part is looked at: PTX in device code is fine, assembly
that the host's assembler would read could name the host's files, or make system calls past the scan of symbols.
"""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path

from sandbox.toolchains.cpp import (
    TEXT_FLAGS,
    Built,
    CandidateCompileError,
    Deadline,
    compile_side_by_side,
    compiler,
    exported_interface,
    link,
    object_name,
    prototypes_of,
    write_sources,
)
from sandbox.toolchains.cuda_toolkit import cuda_identity, cuda_libraries, present_arch, toolkit
from sandbox.toolchains.interface import Parameter, Prototype
from sandbox.toolchains.process import Ran, run_limited
from sandbox.types import SandboxUnavailableError

DEVICE_FLAGS = [
    "-std=c++20",
    "-O3",
    "-lineinfo",  # compute-sanitizer and profilers name lines; costs nothing at run time
    "--expt-relaxed-constexpr",
    # --use_fast_math is not set: it would flush denormals and replace division and transcendentals by rough ones.
]
HOST_FLAGS = ["-std=c++20", "-O3", "-fPIC", "-x", "c++", "-fpreprocessed", "-Wno-psabi"]
SOURCE_SUFFIXES = (".cu",)
STREAM_NAMES = ("stream", "cuda_stream", "cu_stream")
"""A `void*` parameter of this name is the stream, for launchers whose header does not include CUDA's."""
_MARKER = re.compile(r'^# (?P<line>\d+) "(?P<file>[^"]*)"')
_ASSEMBLY = re.compile(r"(?<!\w)(__asm__|__asm|asm)(?!\w)")
_MISSING_HEADER = re.compile(r"fatal error: (?P<name>cublas_v2\.h|cublasLt\.h|cudnn\w*\.h): No such file")


class CudaToolchain:
    """Compiles kernels/*.cu into one object whose extern "C" functions are its interface."""

    def __init__(self, module: str, arch: str | None) -> None:
        """`arch` as CompileConfig.cuda_arch."""
        self._module = module
        self._arch = arch

    def fingerprint(self) -> str:
        """Everything but the sources that the object depends on."""
        return "\n".join(["cuda 1", self._module, self.arch(), cuda_identity(), *DEVICE_FLAGS, *HOST_FLAGS])

    def arch(self) -> str:
        return self._arch or present_arch()

    def build(self, sources: dict[str, str], folder: Path, deadline: Deadline) -> Built:
        """Raises CandidateCompileError; SandboxUnavailableError where the machine failed."""
        prototypes = [with_stream(prototype) for prototype in prototypes_of(sources, SOURCE_SUFFIXES)]
        write_sources(sources, folder)
        objects, log = compile_cuda(sources, self.arch(), folder, deadline)
        target = folder / f"{self._module}.so"
        link(["-shared", *objects, *cuda_libraries(), "-Wl,--no-undefined", "-Wl,-z,now"], target, folder, deadline)
        shared_object = target.read_bytes()
        interface = exported_interface(prototypes, shared_object, self._module, device="cuda")
        return Built(shared_object, interface, log)


def compile_cuda(sources: dict[str, str], arch: str, folder: Path, deadline: Deadline) -> tuple[list[str], str]:
    """Object files of all .cu units, side by side, and the compilers' warnings."""
    units = [path for path in sources if path.endswith(SOURCE_SUFFIXES)]
    cuda = toolkit()
    own = set(sources)

    def compile_unit(path: str) -> Ran:
        host = object_name(path).removesuffix(".o") + ".ii"
        command = [cuda.nvcc, *DEVICE_FLAGS, *target_flags(arch), "-ccbin", compiler()]
        command += [argument for include in cuda.include for argument in ("-isystem", include)]
        ran = run_limited([*command, "-cuda", path, "-o", host], cwd=folder, timeout_s=deadline.left())
        _raise_for_missing_headers(ran)
        if ran.exit_code != 0:
            return ran
        place = host_assembly((folder / host).read_text(encoding="utf-8", errors="replace"), own)
        if place is not None:
            raise CandidateCompileError(
                f"{place}: error: assembly in host code; asm() belongs into __device__ and __global__ functions"
            )
        command = [compiler(), *HOST_FLAGS, *TEXT_FLAGS, "-c", host, "-o", object_name(path)]
        compiled = run_limited(command, cwd=folder, timeout_s=deadline.left())
        return replace(compiled, output=ran.output + compiled.output)

    log = compile_side_by_side(units, compile_unit, folder, deadline)
    return [object_name(path) for path in units], log


def host_assembly(preprocessed: str, own: set[str]) -> str | None:
    """`file:line` of the first assembly statement that lines of the `own` files leave in nvcc's host code, or None.

    cudafe++ has taken the bodies of device functions out by now and the preprocessor has run, so neither macros nor
    token pasting hide one. The guard refuses #line, which could.
    """
    file, number = "", 0
    for line in preprocessed.splitlines():
        marker = _MARKER.match(line)
        if marker is not None:
            file, number = marker["file"].removeprefix("./"), int(marker["line"]) - 1
            continue
        number += 1
        if file in own and _ASSEMBLY.search(re.sub(r'"(?:\\.|[^"\\])*"', '""', line)):
            return f"{file}:{number}"
    return None


def with_stream(prototype: Prototype) -> Prototype:
    """The prototype with its `void* stream` as a stream."""

    def convert(parameter: Parameter) -> Parameter:
        is_stream = parameter.pointer and parameter.dtype == "void" and parameter.name in STREAM_NAMES
        return Parameter(parameter.name, "stream", False) if is_stream else parameter

    return replace(prototype, parameters=[convert(parameter) for parameter in prototype.parameters])


def target_flags(arch: str) -> list[str]:
    number = arch.removeprefix("sm_")
    return [f"-gencode=arch=compute_{number},code=sm_{number}"]


def _raise_for_missing_headers(ran: Ran) -> None:
    missing = _MISSING_HEADER.search(ran.output)
    if missing is not None:
        raise SandboxUnavailableError(
            f"{missing['name']} is not on this machine, so kernels that call the library cannot be compiled; "
            "`pip install nvidia-cublas nvidia-cudnn-cu13` (or their toolkit packages) where CUDA is compiled"
        )
