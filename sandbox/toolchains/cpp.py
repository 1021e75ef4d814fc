"""g++ toolchain of the `cpp` skill: kernels behind a plain C ABI, no torch header, a tenth of a second a compile."""

from __future__ import annotations

import functools
import hashlib
import os
import platform
import re
import shutil
import subprocess
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Literal

from sandbox.elf import dynamic_symbols
from sandbox.toolchains.diagnostics import trim_errors
from sandbox.toolchains.interface import Prototype, PrototypeError, interface_of
from sandbox.toolchains.process import Ran, run_limited
from sandbox.toolchains.prototypes import parse_prototypes
from sandbox.types import SandboxUnavailableError

CODE_FLAGS = [
    "-std=gnu++20",
    "-O3",
    "-march=native",
    "-fopenmp",
    "-fPIC",
    # errno and traps are never looked at, and without them sqrt and friends vectorise. -ffast-math is not
    # set: it would assume that NaN and infinity do not occur and reorder sums, and both are judged.
    "-fno-math-errno",
    "-fno-trapping-math",
    "-ffp-contract=fast",
]
TEXT_FLAGS = ["-fmax-errors=8", "-fdiagnostics-color=never", "-fdiagnostics-urls=never", "-fno-diagnostics-show-labels"]
SOURCE_SUFFIXES = (".cpp", ".cc", ".cxx")
MAX_OBJECT_BYTES = 128 << 20
_OUR_TROUBLE = re.compile(
    r"No space left on device|Killed signal terminated program|cannot execute|"
    r"\[-Werror=invalid-pch\]|internal compiler error: Killed|nvcc fatal"
)


class CandidateCompileError(Exception):
    """The candidate's sources do not compile or link; the message is for their author."""

    def __init__(self, message: str, *, output: str = "") -> None:
        super().__init__(message)
        self.output = output
        """All that compiler or linker said, where the message is trimmed from it."""


class CompileTimeoutError(CandidateCompileError):
    """They took too long, which the load of the machine may have caused: reported, never remembered."""


@dataclass(frozen=True, slots=True)
class Built:
    """A linked shared object."""

    shared_object: bytes
    interface: str
    log: str


class Deadline:
    """Time left for one compile."""

    def __init__(self, seconds: float) -> None:
        self.seconds = seconds
        self._end = time.monotonic() + seconds

    def left(self) -> float:
        return self._end - time.monotonic()


class CppToolchain:
    """Compiles kernels/*.cpp into one object whose extern "C" functions are its interface."""

    def __init__(self, module: str) -> None:
        self._module = module

    def fingerprint(self) -> str:
        """Everything but the sources that the object depends on."""
        return "\n".join(["cpp 1", self._module, compiler_identity(), *CODE_FLAGS])

    def arch(self) -> str:
        return native_arch()

    def build(self, sources: dict[str, str], folder: Path, deadline: Deadline) -> Built:
        """Raises CandidateCompileError; SandboxUnavailableError where the machine failed."""
        prototypes = prototypes_of(sources, SOURCE_SUFFIXES)
        write_sources(sources, folder)
        objects, log = compile_sources(sources, CODE_FLAGS, folder, deadline)
        target = folder / f"{self._module}.so"
        # Nothing may stay undefined: the plain ABI links to the C, C++ and OpenMP runtimes and to nothing else.
        link(["-shared", "-fopenmp", *objects, "-Wl,--no-undefined", "-Wl,-z,now"], target, folder, deadline)
        shared_object = target.read_bytes()
        return Built(shared_object, exported_interface(prototypes, shared_object, self._module), log)


def prototypes_of(sources: dict[str, str], suffixes: tuple[str, ...]) -> list[Prototype]:
    """The C ABI that the files with one of `suffixes` define. Raises CandidateCompileError."""
    try:
        return [
            prototype
            for path, text in sources.items()
            if path.endswith(suffixes)
            for prototype in parse_prototypes(path, text)
        ]
    except PrototypeError as error:
        raise CandidateCompileError(str(error)) from error


def exported_interface(
    prototypes: list[Prototype], shared_object: bytes, module: str, *, device: Literal["cpu", "cuda"] = "cpu"
) -> str:
    """Artifact.interface: the prototypes that the object exports. Raises CandidateCompileError."""
    try:
        return interface_of(prototypes, dynamic_symbols(shared_object).exported, module, device=device)
    except PrototypeError as error:
        raise CandidateCompileError(str(error)) from error


def write_sources(sources: dict[str, str], folder: Path) -> None:
    """Writes the candidate's files below `folder`; names were checked when they were collected."""
    for relative, text in sources.items():
        path = folder / relative
        if PurePosixPath(relative).is_absolute() or ".." in PurePosixPath(relative).parts:
            raise CandidateCompileError(f"{relative!r} leaves the workdir; kernels lie in kernels/")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")


def compile_sources(
    sources: dict[str, str], flags: list[str], folder: Path, deadline: Deadline
) -> tuple[list[str], str]:
    """Object files of all translation units, side by side on the cores there are, and the compiler's warnings.

    Every unit is compiled even where another fails, so that the first errors of each file reach the agent.
    """
    units = [path for path in sources if path.endswith(SOURCE_SUFFIXES)]

    def compile_unit(path: str) -> Ran:
        command = [compiler(), *flags, *TEXT_FLAGS, "-c", path, "-o", object_name(path)]
        return run_limited(command, cwd=folder, timeout_s=deadline.left())

    return [object_name(path) for path in units], compile_side_by_side(units, compile_unit, folder, deadline)


def compile_side_by_side(units: list[str], compile_unit: Callable[[str], Ran], folder: Path, deadline: Deadline) -> str:
    """Runs `compile_unit` for each unit on the cores there are; the compilers' warnings. Raises like `build`."""
    with ThreadPoolExecutor(max_workers=max(1, min(len(units), len(os.sched_getaffinity(0))))) as pool:
        results = list(pool.map(compile_unit, units))
    raise_for(results, folder, deadline)
    return "".join(ran.output for ran in results)[:20_000]


def link(arguments: list[str], target: Path, folder: Path, deadline: Deadline) -> str:
    """Links `target` and returns the linker's output; raises like compile_sources, and for an object that is too large
    to be cached and sent."""
    ran = run_limited([compiler(), *arguments, "-o", target.name], cwd=folder, timeout_s=deadline.left())
    raise_for([ran], folder, deadline)
    num_bytes = target.stat().st_size
    if num_bytes > MAX_OBJECT_BYTES:
        raise CandidateCompileError(
            f"the compiled kernels take {num_bytes / 1e6:.0f} MB, at most {MAX_OBJECT_BYTES / 1e6:.0f} MB are allowed; "
            "fill large tables when the library is loaded, and instantiate fewer templates"
        )
    return ran.output


def compiler() -> str:
    """Path of g++. Raises SandboxUnavailableError where there is none."""
    path = shutil.which("g++")
    if path is None:
        raise SandboxUnavailableError("g++ is not on PATH; install it (Debian: apt-get install g++) and start again")
    return path


@functools.cache
def compiler_identity() -> str:
    """Version of g++ and the machine options that -march=native stands for here."""
    options = subprocess.run(
        [compiler(), "-march=native", "-Q", "--help=target"],
        capture_output=True,
        text=True,
        check=True,
        env={"PATH": os.environ.get("PATH", os.defpath), "LC_ALL": "C"},
    )
    version = subprocess.run([compiler(), "--version"], capture_output=True, text=True, check=True)
    return version.stdout.splitlines()[0] + " " + hashlib.sha256(options.stdout.encode()).hexdigest()[:16]


@functools.cache
def native_arch() -> str:
    """`Artifact.arch` of this machine: objects of -march=native may not run where it differs."""
    return f"{platform.machine()}-native-{hashlib.sha256(compiler_identity().encode()).hexdigest()[:8]}"


def object_name(path: str) -> str:
    return path.replace("/", "_") + ".o"


def raise_for(results: list[Ran], folder: Path, deadline: Deadline) -> None:
    """Raises for compiler processes that failed: ours, out of time, or the candidate's."""
    failed = [ran for ran in results if ran.exit_code != 0]
    for ran in failed:
        trouble = _OUR_TROUBLE.search(ran.output)
        if trouble is not None:
            raise SandboxUnavailableError(f"the compiler could not work: {trim_errors(ran.output, folder)}")
    if any(ran.exit_code is None for ran in failed):
        raise CompileTimeoutError(
            f"the compile took longer than {deadline.seconds:g} s and was stopped; write smaller "
            "functions or fewer template instantiations"
        )
    if failed:
        output = "\n".join(ran.output for ran in failed)
        raise CandidateCompileError(trim_errors(output, folder), output=output)
