"""CompileService: a candidate's sources to an Artifact, or to the error that its author has to read."""

from __future__ import annotations

import errno
import hashlib
import threading
import time
from pathlib import Path
from typing import Any, Protocol

from sandbox.cache import ContentCache
from sandbox.config import CompileConfig
from sandbox.guard import check_kernels
from sandbox.skill import Skill, load_skill
from sandbox.toolchains.cpp import Built, CandidateCompileError, CompileTimeoutError, CppToolchain, Deadline
from sandbox.toolchains.cpp_agent import CppAgentToolchain
from sandbox.toolchains.cuda import CudaToolchain
from sandbox.toolchains.cuda_agent import CudaAgentToolchain
from sandbox.types import Artifact, Candidate, CompileResult, SandboxUnavailableError


class Toolchain(Protocol):
    """What a skill's sources are compiled with."""

    def fingerprint(self) -> str:
        """Everything but the sources that the object depends on: compiler, machine, flags, fixed files."""
        ...

    def arch(self) -> str:
        """Artifact.arch."""
        ...

    def build(self, sources: dict[str, str], folder: Path, deadline: Deadline) -> Built: ...


class CompileService:
    """Compiles candidates through a content cache. Threads and processes may share one cache folder.

    Results, failures included, are cached under a hash of sources, flags, compiler, machine and, where the skill uses
    them, torch and the fixed files. At most `config.num_workers` candidates are compiled at once in one service; the
    sources of one candidate compile side by side.
    """

    def __init__(self, config: CompileConfig) -> None:
        """Raises SandboxUnavailableError where the cache folder cannot be made."""
        self._config = config
        try:
            self._cache = ContentCache(config.cache_dir, max_bytes=config.cache_max_mb * 1024 * 1024)
        except OSError as error:
            raise SandboxUnavailableError(
                f"compile.cache_dir={config.cache_dir} cannot be used: {error}; set it to a folder this user may write"
            ) from error
        self._slots = threading.BoundedSemaphore(config.num_workers)
        self._toolchains: dict[str, Toolchain] = {}
        self._guard = threading.Lock()

    def compile(self, skill: str, candidate: Candidate) -> CompileResult:
        """The artifact of `candidate`, or None and a message with the first errors.

        Raises SandboxUnavailableError where the compiler, torch's headers, the disk or the cache folder let us down;
        that says nothing about the candidate.
        """
        started = time.monotonic()
        loaded = load_skill(skill)
        refusal = check_kernels(loaded, candidate)
        if refusal is not None:
            return CompileResult(artifact=None, message=refusal, seconds=time.monotonic() - started)
        sources = {path: text for path, text in sorted(candidate.files.items()) if path.startswith("kernels/")}
        toolchain = self._toolchain(loaded)
        key = _key(toolchain.fingerprint(), sources)
        try:
            entry = self._cache.load(key)
            cached = entry is not None
            if entry is None:
                with self._slots, self._cache.entry_lock(key):
                    entry = self._cache.load(key) or self._build(key, toolchain, sources)
        except OSError as error:
            raise SandboxUnavailableError(_disk_trouble(error, self._config)) from error
        return _result(*entry, seconds=time.monotonic() - started, cached=cached)

    def _build(self, key: str, toolchain: Toolchain, sources: dict[str, str]) -> tuple[dict[str, Any], bytes]:
        with self._cache.build_folder() as folder:
            try:
                built = toolchain.build(sources, folder, Deadline(self._config.timeout_s))
            except CompileTimeoutError as error:
                return {"message": str(error)}, b""
            except CandidateCompileError as error:
                record, payload = {"message": str(error)}, b""
            else:
                record = {"message": "", "log": built.log, "interface": built.interface, "arch": toolchain.arch()}
                payload = built.shared_object
        self._cache.store(key, record, payload)
        return record, payload

    def _toolchain(self, skill: Skill) -> Toolchain:
        with self._guard:
            if skill.name not in self._toolchains:
                self._toolchains[skill.name] = self._make_toolchain(skill)
            return self._toolchains[skill.name]

    def _make_toolchain(self, skill: Skill) -> Toolchain:
        match skill.toolchain, skill.plain_abi:
            case "cpp", True:
                return CppToolchain(skill.extension_module)
            case "cpp", False:
                return CppAgentToolchain(skill.template, self._cache)
            case "cuda", True:
                return CudaToolchain(skill.extension_module, self._config.cuda_arch)
            case _:
                return CudaAgentToolchain(skill.template, self._cache, self._config.cuda_arch)


def _key(fingerprint: str, sources: dict[str, str]) -> str:
    digest = hashlib.sha256()
    for text in (fingerprint, *(part for item in sources.items() for part in item)):
        encoded = text.encode("utf-8")
        digest.update(len(encoded).to_bytes(8, "little") + encoded)
    return digest.hexdigest()


def _result(record: dict[str, Any], payload: bytes, *, seconds: float, cached: bool) -> CompileResult:
    if not payload:
        return CompileResult(artifact=None, message=record["message"], seconds=seconds, cached=cached)
    artifact = Artifact(
        sha256=hashlib.sha256(payload).hexdigest(),
        arch=record["arch"],
        shared_object=payload,
        log=record["log"],
        interface=record["interface"],
    )
    return CompileResult(artifact=artifact, message="", seconds=seconds, cached=cached)


def _disk_trouble(error: OSError, config: CompileConfig) -> str:
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        return (
            f"no space left below compile.cache_dir={config.cache_dir}; free some, or point it at a larger disk "
            f"(it may grow to compile.cache_max_mb={config.cache_max_mb} and 800 MB a skill for precompiled headers)"
        )
    return f"compile.cache_dir={config.cache_dir} failed: {error}"
