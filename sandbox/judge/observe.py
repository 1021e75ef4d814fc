"""What a candidate does besides its kernels: torch operators it runs, and attempts to reach outside.

Both records live in the candidate's process, so a determined candidate could silence them; isolation and the
supervisor's own checks do not depend on them. They turn honest mistakes and plain attempts into refusals that say why.
"""

from __future__ import annotations

import os
import sys
from collections import Counter
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode

_MAX_EVENTS = 20
PROCESS_EVENTS = (
    "subprocess.Popen",
    "os.system",
    "os.exec",
    "os.fork",
    "os.forkpty",
    "os.posix_spawn",
    "os.spawn",
    "pty.spawn",
    "os.kill",
    "os.killpg",
)
_FRAME_EVENTS = (
    "sys._getframe",
    "sys._current_frames",
    "sys._current_exceptions",
    "gc.get_objects",
    "gc.get_referrers",
    "gc.get_referents",
    "sys.settrace",
    "sys.setprofile",
)
_FILE_EVENTS = (
    "os.remove",
    "os.rename",
    "os.rmdir",
    "os.mkdir",
    "os.chmod",
    "os.chown",
    "os.link",
    "os.symlink",
    "os.truncate",
    "shutil.",
    "tempfile.",
)


def opens_for_writing(mode: Any, flags: Any) -> bool:
    """From the arguments of the audit event `open`."""
    return bool(isinstance(flags, int) and flags & 3 != 0 or isinstance(mode, str) and set(mode) & set("wax+"))


class OperatorRecord(TorchDispatchMode):
    """Counts the aten operators that reach the dispatcher while it is entered."""

    def __init__(self) -> None:
        super().__init__()
        self._counts: Counter[str] = Counter()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self._counts[str(func)] += 1
        return func(*args, **(kwargs or {}))

    def counts(self) -> dict[str, int]:
        return dict(self._counts.most_common(_MAX_EVENTS))


class TamperRecord:
    """Records audit events that no kernel needs: writing files, frames and gc, ctypes, processes, sockets."""

    def __init__(self) -> None:
        self._events: list[str] = []
        self._files: frozenset[str] = frozenset()
        self._busy = False

    def start(self, candidate_files: list[str]) -> None:
        """From here on; an audit hook cannot be removed again."""
        self._files = frozenset(candidate_files)
        sys.addaudithook(self._hook)

    def events(self) -> list[str]:
        return list(self._events)

    def add(self, event: str) -> None:
        """Records what no audit event tells of."""
        if len(self._events) < _MAX_EVENTS:
            self._events.append(event)
            os.write(2, f"{event}\n".encode(errors="replace"))  # the call itself may be this process's last

    def _hook(self, event: str, arguments: tuple[Any, ...]) -> None:
        if self._busy or len(self._events) >= _MAX_EVENTS:
            return
        self._busy = True
        try:
            text = self._describe(event, arguments)
            if text is not None:
                self.add(text)
        finally:
            self._busy = False

    def _describe(self, event: str, arguments: tuple[Any, ...]) -> str | None:
        if event == "open":
            path, mode, flags = arguments
            return f"opened {path!s} for writing" if opens_for_writing(mode, flags) else None
        if event.startswith(PROCESS_EVENTS) or event.startswith("socket."):
            return f"called {event}"
        if event.startswith(_FILE_EVENTS):
            return f"called {event} on {str(arguments[:1])[:80]}"
        if (event.startswith(_FRAME_EVENTS) or event.startswith("ctypes.")) and self._from_candidate():
            return f"called {event}"
        return None

    def _from_candidate(self) -> bool:
        """True where the candidate's own code made the call; libraries use frames and ctypes for good reasons."""
        name = sys._getframe(3).f_code.co_filename
        return name in self._files or (name.startswith("<") and not name.startswith("<frozen "))


class BlockedFunctional:
    """`torch.nn.functional` raises while it is entered: the paper's own rule against falling back to torch."""

    def __enter__(self) -> None:
        functional = torch.nn.functional
        self._saved = {
            name: value for name, value in vars(functional).items() if callable(value) and not name.startswith("_")
        }
        for name in self._saved:
            setattr(functional, name, _blocked(name))

    def __exit__(self, *exc: object) -> None:
        for name, value in self._saved.items():
            setattr(torch.nn.functional, name, value)


def _blocked(name: str) -> Any:
    def refuse(*args: Any, **kwargs: Any) -> Any:
        raise RuntimeError(f"torch.nn.functional.{name} may not be called by ModelNew; compute it in a kernel")

    return refuse
