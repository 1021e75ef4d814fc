"""Torch's headers, precompiled once a machine, and the objects that every module of an agent skill is linked with."""

from __future__ import annotations

import contextlib
import functools
import hashlib
import importlib.util
import logging
import os
import shutil
from collections.abc import Iterator
from pathlib import Path

from sandbox.cache import ContentCache
from sandbox.toolchains import thin_bindings
from sandbox.toolchains.cpp import TEXT_FLAGS, compiler, write_sources
from sandbox.toolchains.diagnostics import trim_errors
from sandbox.toolchains.process import run_limited
from sandbox.types import SandboxUnavailableError

logger = logging.getLogger(__name__)
WHOLE = "#include <torch/types.h>\n#include <torch/csrc/utils/pybind.h>\n"
_TORCH_TYPES = "include/torch/csrc/api/include/torch/types.h"
_PREPARE_TIMEOUT_S = 600.0
_HEADER_BYTES = 2 << 30
"""A precompiled header is larger than what candidates may compile to."""
_KEPT = 2


class TorchHeaders:
    """Prepares a folder with prefix.h, prefix.h.gch, binding.o and thin/ in `toolchains/KEY` of the cache folder."""

    def __init__(self, cache: ContentCache, *, fixed: dict[str, str], device_headers: str) -> None:
        """`fixed` are binding.cpp and what it includes; `device_headers` go behind torch's."""
        self._cache, self._fixed, self._device_headers = cache, fixed, device_headers

    @contextlib.contextmanager
    def prepared(self, fingerprint: str, flags: list[str]) -> Iterator[Path]:
        """The folder, filled first if need be, kept while in use; `flags` of g++ are part of `fingerprint`."""
        key = hashlib.sha256(f"{fingerprint}\n{torch_root()}".encode()).hexdigest()[:32]
        home = self._cache.root / "toolchains" / key
        while True:
            with self._cache.lock(f"toolchain-{key[:2]}", shared=True):
                if home.is_dir():
                    os.utime(home)
                    yield home
                    return
            with self._cache.lock(f"toolchain-{key[:2]}"):
                if not home.is_dir():
                    self._prepare(home, flags)
                    self._drop_old(home)

    def _prepare(self, home: Path, flags: list[str]) -> None:
        home.parent.mkdir(exist_ok=True)
        with self._cache.build_folder() as scratch:
            ready = scratch / "ready"
            write_sources(self._fixed, scratch)
            write_sources({"ready/prefix.h": WHOLE + self._device_headers}, scratch)
            prefix = ready / "prefix.h"

            def gxx(arguments: list[str]) -> None:
                command = [compiler(), *arguments, *flags, *TEXT_FLAGS]
                ran = run_limited(command, cwd=scratch, timeout_s=_PREPARE_TIMEOUT_S, max_file_bytes=_HEADER_BYTES)
                if ran.exit_code != 0:
                    errors = trim_errors(ran.output, scratch, sources="binding")
                    raise SandboxUnavailableError(f"torch's headers could not be precompiled: {errors}")

            gxx(["-x", "c++-header", str(prefix), "-o", f"{prefix}.gch"])
            gxx(["-include", str(prefix), "-c", "binding.cpp", "-o", str(ready / "binding.o")])
            torch_types = (torch_root() / _TORCH_TYPES).read_text(encoding="utf-8")
            try:
                thin_bindings.prepare(ready / "thin", prefix, self._device_headers, torch_types, gxx)
            except SandboxUnavailableError as error:
                shutil.rmtree(ready / "thin")
                logger.warning("every kernel of an agent skill compiles with torch's whole headers: %s", error)
            os.replace(ready, home)

    def _drop_old(self, home: Path) -> None:
        """Keeps the most recently used: each is 0.7 GB. One in use elsewhere is left alone."""
        by_use = sorted(home.parent.iterdir(), key=lambda path: path.stat().st_mtime, reverse=True)
        for path in by_use[_KEPT:]:
            with contextlib.suppress(BlockingIOError), self._cache.lock(f"toolchain-{path.name[:2]}", wait=False):
                shutil.rmtree(path, ignore_errors=True)


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
