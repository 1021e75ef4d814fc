"""g++ toolchain of the `cpp_agent` skill: the CUDA-Agent layout with torch::Tensor and REGISTER_BINDING.

Torch's headers cost tens of seconds a compile. They are precompiled once a machine, next to the object of the fixed
binding.cpp, in `toolchains/KEY` of the cache folder; a kernel then compiles in a few seconds. The `cuda_agent` skill
builds on the same class.
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
import importlib.util
import os
import re
import shutil
import sysconfig
import time
from collections.abc import Iterator
from pathlib import Path

from sandbox.cache import ContentCache
from sandbox.toolchains.cpp import (
    CODE_FLAGS,
    TEXT_FLAGS,
    Built,
    CandidateCompileError,
    Deadline,
    compile_sources,
    compiler,
    compiler_identity,
    link,
    native_arch,
    write_sources,
)
from sandbox.toolchains.diagnostics import trim_errors, unresolved
from sandbox.toolchains.process import run_limited
from sandbox.types import SandboxUnavailableError

PREFIX = "#include <torch/types.h>\n#include <torch/csrc/utils/pybind.h>\n"
PREPARE_TIMEOUT_S = 600.0
KEPT_TOOLCHAINS = 2
_HEADER_BYTES = 2 << 30
_OWN_FLAGS = ["-fvisibility=hidden", "-Wno-psabi"]
_PYTHON = re.compile(r"_?Py")
"""The interpreter that imports the module provides these; it need not exist as a library."""


class AgentToolchain:
    """Compiles kernels/ and the skill's binding.cpp into an extension module; what differs by device is overridden."""

    skill = "cpp_agent"
    module = "cpu_extension"
    prefix = PREFIX
    """Headers that are precompiled; every binding starts with them."""
    torch_libraries = ["torch_python", "torch_cpu", "torch", "c10"]

    def __init__(self, fixed: dict[str, str], cache: ContentCache) -> None:
        self._fixed = {name: fixed[name] for name in ("binding.cpp", "binding_registry.h")}
        self._cache = cache
        self.prepare_seconds: float | None = None
        """What the precompiled header and binding.o cost here; None where they were found ready."""

    def fingerprint(self) -> str:
        """Everything but the sources that the object depends on."""
        return "\n".join(
            [
                f"{self.skill} 1",
                compiler_identity(),
                torch_version(),
                sysconfig.get_python_version(),
                self.prefix,
                *CODE_FLAGS,
                *_OWN_FLAGS,
                *self._fixed.values(),
            ]
        )

    def arch(self) -> str:
        return native_arch()

    def flags(self) -> list[str]:
        """Of g++, for bindings and the precompiled header."""
        headers = [
            f"{torch_root()}/include",
            f"{torch_root()}/include/torch/csrc/api/include",
            sysconfig.get_path("include"),
        ]
        return [*CODE_FLAGS, *_OWN_FLAGS, *(argument for path in headers for argument in ("-isystem", path))]

    def compile_units(
        self, sources: dict[str, str], binding_flags: list[str], folder: Path, deadline: Deadline
    ) -> tuple[list[str], str]:
        """Object files and the compilers' warnings; `binding_flags` are g++'s with the precompiled header."""
        return compile_sources(sources, binding_flags, folder, deadline)

    def libraries(self) -> list[str]:
        """Linker arguments beside torch's libraries."""
        return ["-fopenmp"]

    def build(self, sources: dict[str, str], folder: Path, deadline: Deadline) -> Built:
        """Raises CandidateCompileError; SandboxUnavailableError where the machine failed."""
        with self._prepared() as prepared:
            deadline = Deadline(deadline.seconds)  # preparing the headers is not the candidate's time
            write_sources(sources, folder)
            write_sources({"binding_registry.h": self._fixed["binding_registry.h"]}, folder)
            flags = [*self.flags(), "-Winvalid-pch", "-Werror=invalid-pch", "-include", str(prepared / "prefix.h")]
            objects, log = self.compile_units(sources, flags, folder, deadline)
            target = folder / f"{self.module}.so"
            output = link(
                [
                    "-shared",
                    str(prepared / "binding.o"),
                    *objects,
                    *self.libraries(),
                    f"-L{torch_root()}/lib",
                    *(f"-l{name}" for name in self.torch_libraries),
                    "-Wl,--no-undefined",
                    "-Wl,--warn-unresolved-symbols",
                    "-Wl,-z,now",
                ],
                target,
                folder,
                deadline,
            )
        missing = unresolved(output, provided=_PYTHON)
        if missing:
            raise CandidateCompileError(
                "\n".join(f"link error: undefined reference to `{name}'" for name in missing[:4])
            )
        return Built(target.read_bytes(), "", log)

    @contextlib.contextmanager
    def _prepared(self) -> Iterator[Path]:
        """The folder with the precompiled header and binding.o, built first if need be, kept while in use."""
        key = hashlib.sha256(f"{self.fingerprint()}\n{torch_root()}".encode()).hexdigest()[:32]
        home = self._cache.root / "toolchains" / key
        while True:
            with self._cache.lock(f"toolchain-{key[:2]}", shared=True):
                if home.is_dir():
                    os.utime(home)
                    yield home
                    return
            with self._cache.lock(f"toolchain-{key[:2]}"):
                if not home.is_dir():
                    self._prepare(home)
                    self._drop_old(home)

    def _prepare(self, home: Path) -> None:
        started = time.monotonic()
        home.parent.mkdir(exist_ok=True)
        with self._cache.build_folder() as scratch:
            (scratch / "prefix.h").write_text(self.prefix)
            write_sources(self._fixed, scratch)
            flags = [compiler(), *self.flags(), *TEXT_FLAGS]
            for arguments in (
                ["-x", "c++-header", "prefix.h", "-o", "prefix.h.gch"],
                ["-include", "./prefix.h", "-c", "binding.cpp", "-o", "binding.o"],
            ):
                ran = run_limited(
                    [*flags, *arguments], cwd=scratch, timeout_s=PREPARE_TIMEOUT_S, max_file_bytes=_HEADER_BYTES
                )
                if ran.exit_code != 0:
                    raise SandboxUnavailableError(
                        "torch's headers could not be precompiled: "
                        f"{trim_errors(ran.output, scratch, sources='binding')}"
                    )
            ready = scratch / "ready"
            ready.mkdir()
            for name in ("prefix.h", "prefix.h.gch", "binding.o"):
                os.replace(scratch / name, ready / name)
            os.replace(ready, home)
        self.prepare_seconds = time.monotonic() - started

    def _drop_old(self, home: Path) -> None:
        """Keeps the most recently used toolchains: each is half a gigabyte. One in use elsewhere is left alone."""
        by_use = sorted(home.parent.iterdir(), key=lambda path: path.stat().st_mtime, reverse=True)
        for path in by_use[KEPT_TOOLCHAINS:]:
            with contextlib.suppress(BlockingIOError), self._cache.lock(f"toolchain-{path.name[:2]}", wait=False):
                shutil.rmtree(path, ignore_errors=True)


class CppAgentToolchain(AgentToolchain):
    """Compiles kernels/*.cpp and the skill's binding.cpp into the extension module `cpu_extension`."""


@functools.cache
def torch_root() -> Path:
    """Folder of the installed torch, found without importing it."""
    found = importlib.util.find_spec("torch")
    if found is None or not found.submodule_search_locations:
        raise SandboxUnavailableError(
            "skills cpp_agent and cuda_agent need torch in this environment; install it or use skill cpp or cuda"
        )
    return Path(found.submodule_search_locations[0])


@functools.cache
def torch_version() -> str:
    return (torch_root() / "version.py").read_text(encoding="utf-8")
