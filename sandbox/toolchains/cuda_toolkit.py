"""What of CUDA is on this machine: nvcc, libraries, headers, and the architecture of its GPU."""

from __future__ import annotations

import functools
import importlib.util
import os
import re
import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path

from sandbox.elf import dynamic_symbols
from sandbox.toolchains.cpp import compiler_identity
from sandbox.types import SandboxUnavailableError

_MATH_LIBRARIES = ("cublas", "cublasLt", "cudnn")


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
