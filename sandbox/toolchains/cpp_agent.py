"""g++ toolchain of the `cpp_agent` skill: the CUDA-Agent layout with torch::Tensor and REGISTER_BINDING.

Torch's headers cost tens of seconds a compile, and seconds where they are precompiled, most of them pybind11's. So
bindings are tried without pybind11 first, as thin bindings:

    sources ─► thin bindings ─┬─ compile ───────────────────────────────────► one object
                              ├─ an error that any headers would give ──────► its message
                              └─ any other error ─► the whole headers ──────► one object, or their message

The `cuda_agent` skill builds on the same class.
"""

from __future__ import annotations

import re
import sysconfig
from dataclasses import dataclass, replace
from pathlib import Path

from sandbox.cache import ContentCache
from sandbox.toolchains import thin_bindings
from sandbox.toolchains.cpp import (
    CODE_FLAGS,
    SOURCE_SUFFIXES,
    Built,
    CandidateCompileError,
    CompileTimeoutError,
    Deadline,
    compile_sources,
    compiler_identity,
    link,
    native_arch,
    write_sources,
)
from sandbox.toolchains.diagnostics import unresolved
from sandbox.toolchains.thin_bindings import ThinBindings
from sandbox.toolchains.torch_headers import WHOLE, TorchHeaders, torch_root, torch_version

_HOST_SUFFIXES = (*SOURCE_SUFFIXES, ".h", ".hpp")
_OWN_FLAGS = ["-fvisibility=hidden", "-Wno-psabi"]
_PYTHON = re.compile(r"_?Py")
"""The interpreter that imports the module provides these; it need not exist as a library."""


@dataclass(frozen=True, slots=True)
class _Job:
    """What is compiled: the candidate's sources, written to `folder`, and the objects to link them with."""

    sources: dict[str, str]
    folder: Path
    objects: list[str]


class AgentToolchain:
    """Compiles kernels/ and the skill's binding.cpp into an extension module; what differs by device is overridden."""

    skill = "cpp_agent"
    module = "cpu_extension"
    device_headers = ""
    """Precompiled behind torch's and pybind11's; every binding starts with them."""
    torch_libraries = ["torch_python", "torch_cpu", "torch", "c10"]

    def __init__(self, fixed: dict[str, str], cache: ContentCache) -> None:
        self._fixed = {name: fixed[name] for name in ("binding.cpp", "binding_registry.h")}
        self._headers = TorchHeaders(cache, fixed=self._fixed, device_headers=self.device_headers)

    def fingerprint(self) -> str:
        """Everything but the sources that the object depends on."""
        return "\n".join(
            [
                f"{self.skill} 2",
                compiler_identity(),
                torch_version(),
                sysconfig.get_python_version(),
                WHOLE,
                self.device_headers,
                *CODE_FLAGS,
                *_OWN_FLAGS,
                *self._fixed.values(),
                *thin_bindings.FILES.values(),
            ]
        )

    def arch(self) -> str:
        return native_arch()

    def flags(self) -> list[str]:
        """Of g++, for bindings and the precompiled headers."""
        headers = [
            f"{torch_root()}/include",
            f"{torch_root()}/include/torch/csrc/api/include",
            sysconfig.get_path("include"),
        ]
        return [*CODE_FLAGS, *_OWN_FLAGS, *(argument for path in headers for argument in ("-isystem", path))]

    def compile_kernels(self, sources: dict[str, str], folder: Path, deadline: Deadline) -> tuple[list[str], str]:
        """Object files and warnings of what is not C++ for the host."""
        return [], ""

    def libraries(self) -> list[str]:
        """Linker arguments beside torch's libraries."""
        return ["-fopenmp"]

    def build(self, sources: dict[str, str], folder: Path, deadline: Deadline) -> Built:
        """Raises CandidateCompileError; SandboxUnavailableError where the machine failed."""
        with self._headers.prepared(self.fingerprint(), self.flags()) as home:
            deadline = Deadline(deadline.seconds)  # preparing the headers is not the candidate's time
            write_sources(sources, folder)
            write_sources({"binding_registry.h": self._fixed["binding_registry.h"]}, folder)
            kernels, log = self.compile_kernels(sources, folder, deadline)
            job = _Job(sources, folder, [*kernels, str(home / "binding.o")])
            built = self._build_thin(ThinBindings(home / "thin"), job, deadline)
            if built is None:
                built = self._bind(job, ["-include", str(home / "prefix.h")], Deadline(deadline.seconds))
        return replace(built, log=log + built.log)

    def _build_thin(self, thin: ThinBindings, job: _Job, deadline: Deadline) -> Built | None:
        """None where the whole headers may do what thin bindings do not; raises where they would not either."""
        if not thin.take({path: text for path, text in job.sources.items() if path.endswith(_HOST_SUFFIXES)}):
            return None
        try:
            return self._bind(replace(job, objects=[*job.objects, *map(str, thin.objects)]), thin.flags, deadline)
        except CompileTimeoutError:
            raise
        except CandidateCompileError as error:
            if thin.are_of_the_author(error.output):
                raise
            return None

    def _bind(self, job: _Job, headers: list[str], deadline: Deadline) -> Built:
        """Compiles and links; `headers` are the flags of g++ for a precompiled header."""
        flags = [*headers, *self.flags(), "-Winvalid-pch", "-Werror=invalid-pch"]
        objects, log = compile_sources(job.sources, flags, job.folder, deadline)
        target = job.folder / f"{self.module}.so"
        output = link(
            [
                "-shared",
                *job.objects,
                *objects,
                *self.libraries(),
                f"-L{torch_root()}/lib",
                *(f"-l{name}" for name in self.torch_libraries),
                "-Wl,--no-undefined",
                "-Wl,--warn-unresolved-symbols",
                "-Wl,-z,now",
            ],
            target,
            job.folder,
            deadline,
        )
        missing = unresolved(output, provided=_PYTHON)
        if missing:
            message = "\n".join(f"link error: undefined reference to `{name}'" for name in missing[:4])
            raise CandidateCompileError(message, output=message)
        return Built(target.read_bytes(), "", log)


class CppAgentToolchain(AgentToolchain):
    """Compiles kernels/*.cpp and the skill's binding.cpp into the extension module `cpu_extension`."""
