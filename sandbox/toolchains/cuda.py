"""nvcc toolchain of the `cuda` skill: kernels behind a plain C ABI, no torch header, no GPU needed to compile.

    kernels/a.cu ─► nvcc -cuda ─► host code with the embedded cubin ─► no assembly of its own? ─► g++ ─┐
    kernels/b.cu ─► …                                                                                  ├─► one object
                                                              cudart, cuBLAS, cuDNN as shared libraries┘

The two steps are what nvcc does in one. Between them the host part is looked at: PTX in device code is fine, assembly
that the host's assembler would read could name the host's files, or make system calls past the scan of symbols.
"""

from __future__ import annotations

import functools
import importlib.util
import os
import re
import shutil
import subprocess
from dataclasses import dataclass, replace
from pathlib import Path

from sandbox.elf import dynamic_symbols
from sandbox.toolchains.cpp import (
    TEXT_FLAGS,
    Built,
    CandidateCompileError,
    Deadline,
    compile_side_by_side,
    compiler,
    compiler_identity,
    exported_interface,
    link,
    object_name,
    prototypes_of,
    write_sources,
)
from sandbox.toolchains.process import Ran, run_limited
from sandbox.toolchains.prototypes import Parameter, Prototype
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
_MATH_LIBRARIES = ("cublas", "cublasLt", "cudnn")
_MARKER = re.compile(r'^# (?P<line>\d+) "(?P<file>[^"]*)"')
_ASSEMBLY = re.compile(r"(?<!\w)(__asm__|__asm|asm)(?!\w)")
_MISSING_HEADER = re.compile(r"fatal error: (?P<name>cublas_v2\.h|cublasLt\.h|cudnn\w*\.h): No such file")


@dataclass(frozen=True, slots=True)
class Toolkit:
    """The parts of CUDA on this machine, from a toolkit installation or from NVIDIA's Python packages."""

    nvcc: str
    version: str
    """`13.0`."""
    own_include: tuple[str, ...]
    """Header folders that nvcc itself looks into."""
    include: tuple[str, ...]
    """Folders beside nvcc's own: cuBLAS and cuDNN headers of the Python packages."""
    cudart: str
    math_libraries: tuple[str, ...]
    """Paths of libcublas, libcublasLt and libcudnn as far as they are there."""


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


def cuda_libraries() -> list[str]:
    """Linker arguments for CUDA's own libraries; those that nothing uses leave no trace in the object."""
    return ["-Wl,--as-needed", toolkit().cudart, *toolkit().math_libraries, "-Wl,--no-as-needed"]


def cuda_identity() -> str:
    """What the output of nvcc depends on besides sources and flags."""
    cuda = toolkit()
    libraries = [Path(path).resolve().name for path in (cuda.cudart, *cuda.math_libraries)]
    return "\n".join([cuda.version, compiler_identity(), *cuda.include, *libraries])


@functools.cache
def toolkit() -> Toolkit:
    """Raises SandboxUnavailableError where nvcc or the CUDA runtime library is missing."""
    nvcc = shutil.which("nvcc")
    if nvcc is None:
        raise SandboxUnavailableError(
            "nvcc is not on PATH; install the CUDA toolkit (or `pip install nvidia-cuda-nvcc` and put its bin folder "
            "on PATH) on machines that compile CUDA kernels"
        )
    version = re.search(r"release (\d+\.\d+)", _said([nvcc, "--version"]))
    top = re.search(r"TOP=(\S+)", _said([nvcc, "--dryrun", "-c", "none.cu"]))
    if version is None or top is None:
        raise SandboxUnavailableError(f"{nvcc} --version and --dryrun give no release and no TOP; is it NVIDIA's nvcc?")
    home = Path(os.path.normpath(top[1]))
    packages = _nvidia_packages()
    folders = [home / "lib64", home / "lib", home / "targets/x86_64-linux/lib", *(each / "lib" for each in packages)]
    cudart = _library("cudart", folders)
    if cudart is None:
        raise SandboxUnavailableError(
            f"libcudart.so lies neither below {home} nor in the Python packages nvidia-*; install the CUDA toolkit's "
            "runtime library or `pip install nvidia-cuda-runtime`"
        )
    own_headers = [each for each in (home / "include", home / "targets/x86_64-linux/include") if each.is_dir()]
    include = tuple(
        dict.fromkeys(
            str(each / "include")
            for header in ("cublas_v2.h", "cudnn.h")
            if not any((folder / header).exists() for folder in own_headers)
            for each in packages
            if (each / "include" / header).exists()
        )
    )
    found = [path for name in _MATH_LIBRARIES if (path := _library(name, folders)) is not None]
    return Toolkit(nvcc, version[1], tuple(map(str, own_headers)), include, cudart, tuple(found))


@functools.cache
def present_arch() -> str:
    """Architecture of this machine's first GPU. Raises SandboxUnavailableError where there is none."""
    try:
        said = _said(["nvidia-smi", "--query-gpu=compute_cap", "--format=csv,noheader"])
    except SandboxUnavailableError:
        said = ""
    match = re.search(r"^(\d+)\.(\d+)$", said, re.MULTILINE)
    if match is None:
        raise SandboxUnavailableError(
            "compile.cuda_arch is not set and this machine has no GPU to ask; set it to the profiler devices' "
            "architecture, for example sm_90a for H100 and H200"
        )
    return arch_of(int(match[1]), int(match[2]))


def arch_of(major: int, minor: int) -> str:
    """`sm_90a` of (9, 0): from Hopper on with the instructions that only this very chip has (wgmma, setmaxnreg)."""
    return f"sm_{major}{minor}{'a' if major >= 9 else ''}"


def runs_on(arch: str, major: int, minor: int) -> bool:
    """Does code compiled for `arch` run on a GPU of this compute capability? sm_80 does on 8.6, sm_90a on 9.0 alone."""
    match = re.fullmatch(r"sm_(\d+)(\d)([af]?)", arch)
    if match is None or int(match[1]) != major:
        return False
    return int(match[2]) == minor if match[3] else int(match[2]) <= minor


def cudart_major(shared_object: bytes) -> str | None:
    """Major release of the CUDA runtime library that an object asks for, None where it asks for none."""
    found = [re.match(r"libcudart\.so\.(\d+)", name) for name in dynamic_symbols(shared_object).needed]
    return next((match[1] for match in found if match is not None), None)


def _said(command: list[str]) -> str:
    """Standard output and error of a short command that may fail."""
    environment = {"PATH": os.environ.get("PATH", os.defpath), "LC_ALL": "C"}
    environment |= {name: os.environ[name] for name in ("LD_LIBRARY_PATH",) if name in os.environ}
    try:
        ran = subprocess.run(command, capture_output=True, text=True, timeout=60, env=environment)
    except (OSError, subprocess.TimeoutExpired) as error:
        raise SandboxUnavailableError(f"{command[0]} does not run: {error}") from error
    return ran.stdout + ran.stderr


def _nvidia_packages() -> list[Path]:
    """Folders of NVIDIA's Python packages: nvidia/cu13, nvidia/cudnn, …"""
    found = importlib.util.find_spec("nvidia")
    roots = found.submodule_search_locations if found is not None else None
    return [folder for root in roots or [] for folder in sorted(Path(root).iterdir()) if (folder / "lib").is_dir()]


def _library(name: str, folders: list[Path]) -> str | None:
    """Path of lib`name`.so, or of the file its Python package has instead: lib`name`.so.13."""
    for folder in folders:
        found = sorted(folder.glob(f"lib{name}.so*"), key=lambda path: len(path.name))
        if found:
            return str(found[0])
    return None


def _raise_for_missing_headers(ran: Ran) -> None:
    missing = _MISSING_HEADER.search(ran.output)
    if missing is not None:
        raise SandboxUnavailableError(
            f"{missing['name']} is not on this machine, so kernels that call the library cannot be compiled; "
            "`pip install nvidia-cublas nvidia-cudnn-cu13` (or their toolkit packages) where CUDA is compiled"
        )
