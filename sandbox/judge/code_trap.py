"""Takes what computes in torch's libraries out of a candidate's process: whoever calls it runs into a trap.

    load, build ModelNew   the process may map code (code_gate, open) and torch may compute
    spring                 pages of functions that compute, and code that came from elsewhere, are replaced by pages of
                           trap instructions; the gate is closed; the supervisor reads the map of the process
    checks, clock          what is executable is what was seen then

The lock on operators (oplock) is Python in the candidate's process, and a binding that walks from object to object can
open it. This is told and held from outside: the candidate's process only replaces its pages, and one that does not is
refused. SIGTRAP ends a process that comes to such a page, and nothing is slower for the others.
"""

from __future__ import annotations

import bisect
import fcntl
import functools
import importlib.util
import os
import platform
import re
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from operator import itemgetter
from pathlib import Path
from typing import Any

from sandbox.judge import libraries
from sandbox.judge.code_gate import CodeGate
from sandbox.judge.code_names import code_names
from sandbox.judge.rejection import RejectedError
from sandbox.judge.worker import Worker
from sandbox.types import Outcome

_TRAPS = {"x86_64": b"\xcc", "aarch64": b"\x00\x00\x20\xd4"}
_TRAP_NAME, _TRAP_BYTES = "traps", 2 << 20
_SEALS = fcntl.F_SEAL_WRITE | fcntl.F_SEAL_GROW | fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_SEAL
_KERNELS_OWN = re.compile(r"\[(vdso|vsyscall|uprobes)\]")
_PYTHONS_OWN = re.compile(r"/lib-dynload/[^/]*$")
"""Parts of the standard library that are loaded when they are first imported."""
_looking_up = threading.Lock()


@dataclass(frozen=True, slots=True)
class Mapping:
    """A range of addresses that can be executed."""

    start: int
    end: int
    offset: int
    path: str
    inode: int
    writable: bool
    changed: bool = False
    """Holds pages that are not, or no longer, those of the file."""


class CodeTrap:
    """Of one candidate's process; made while nobody else's code has run in it."""

    def __init__(self, worker: Worker, gate: CodeGate | None) -> None:
        """`gate`: None where the kernel has none; then a process can map code again, and only samples tell."""
        self._worker = worker
        self._gate = gate
        self._before = {each.path for each in executable(worker.pid)}

    @property
    def holds(self) -> bool:
        """Once sprung, no code comes back."""
        return self._gate is not None

    @property
    def was_asked_for_more(self) -> bool:
        """The process has tried to get code after it was sprung."""
        return self._gate is not None and self._gate.has_refused

    def spring(self, own: str, ask: Callable[[dict[str, Any]], object]) -> None:
        """Raises RejectedError where code is left that the candidate may not run, as when the process does not do as it
        is told.

        `own`: path of the candidate's shared object; `ask` sends a message. The process runs before and after.
        """
        if self._gate is not None:
            self._gate.narrow()  # so that nothing changes any more that has been looked at
        self._worker.stop()
        found = executable(self._worker.pid, with_changes=True)
        self._worker.resume()
        ranges = [piece for each in found for piece in self._not_allowed(each, own)]
        ask({"op": "replace_code", "ranges": ranges, "num_bytes": _TRAP_BYTES})
        if self._gate is not None:
            self._gate.close()
        self._worker.stop()
        left = [each for each in executable(self._worker.pid) if not _is_trap(each)]
        self._worker.resume()
        names = {os.path.basename(each.path) or "memory" for each in left if any(self._not_allowed(each, own))}
        if names:
            raise RejectedError(
                Outcome.REFUSED,
                f"building ModelNew: the process holds code that it may not run, in {', '.join(sorted(names)[:3])}; "
                "all code of a candidate is in the shared object that was compiled of kernels/",
            )

    def _not_allowed(self, mapping: Mapping, own: str) -> Iterator[tuple[int, int]]:
        """The parts of a mapping that the candidate may not run, [first address, past the last)."""
        path = mapping.path
        if _KERNELS_OWN.fullmatch(path):
            return
        if mapping.writable or mapping.changed or libraries.ONLY_COMPUTES.search(path) or not self._is_known(path, own):
            yield mapping.start, mapping.end
        elif libraries.TORCH.search(path):
            yield from _within(mapping, _computing(path))

    def _is_known(self, path: str, own: str) -> bool:
        if libraries.has_no_file(path):
            return False
        later = libraries.RUNTIMES, libraries.WAITING, _PYTHONS_OWN
        return path == own or path in self._before or any(each.search(path) for each in later)


def _within(mapping: Mapping, ranges: list[tuple[int, int]]) -> Iterator[tuple[int, int]]:
    """Addresses of those ranges of a file, in order and apart, that lie in a mapping of it."""
    shift, past = mapping.start - mapping.offset, mapping.offset + mapping.end - mapping.start
    index = bisect.bisect_right(ranges, mapping.offset, key=itemgetter(1))  # a process has as many mappings as ranges
    while index < len(ranges) and ranges[index][0] < past:
        start, end = ranges[index]
        yield max(mapping.start, start + shift), min(mapping.end, end + shift)
        index += 1


def executable(pid: int, *, with_changes: bool = False) -> list[Mapping]:
    """What a process can run; `with_changes` takes several times as long."""
    found: list[Mapping] = []
    with open(f"/proc/{pid}/{'smaps' if with_changes else 'maps'}") as file:
        is_code = False
        for line in file:
            fields = line.split(maxsplit=5)
            if "-" in fields[0]:
                is_code = "x" in fields[1]
                if is_code:
                    start, _, end = fields[0].partition("-")
                    path = fields[5].strip() if len(fields) > 5 else ""
                    inode, writable = int(fields[4]), "w" in fields[1]
                    found.append(Mapping(int(start, 16), int(end, 16), int(fields[2], 16), path, inode, writable))
            elif is_code and fields[0] == "Anonymous:" and fields[1] != "0":
                found[-1] = replace(found[-1], changed=True)
    return found


def _is_trap(mapping: Mapping) -> bool:
    return mapping.path.startswith(f"/memfd:{_TRAP_NAME} ") and mapping.inode == os.fstat(trap_file()).st_ino


def look_up_ahead() -> None:
    """Looks the functions of torch's library up, seconds the first time, while a zygote starts."""
    found = importlib.util.find_spec("torch")
    for path in Path(found.origin or "").parent.glob("lib/libtorch_cpu*") if found is not None else ():
        _computing(str(path.resolve()))


def _computing(path: str) -> list[tuple[int, int]]:
    with _looking_up:  # who comes second waits for the first
        return _pages(path, os.stat(path).st_mtime_ns)


@functools.cache
def _pages(path: str, _changed: int) -> list[tuple[int, int]]:
    try:
        return code_names(path).pages_of(libraries.COMPUTES)
    except (OSError, ValueError):
        return []


@functools.cache
def trap_file() -> int:
    """A descriptor of memory full of instructions that end a process, which nobody can write to any more; -1 where
    there is none for this machine."""
    trap = _TRAPS.get(platform.machine())
    if trap is None:
        return -1
    file = os.memfd_create(_TRAP_NAME, os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    os.write(file, trap * (_TRAP_BYTES // len(trap)))
    fcntl.fcntl(file, fcntl.F_ADD_SEALS, _SEALS)
    return file
