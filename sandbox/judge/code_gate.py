"""Whether memory of a candidate's process may become executable: the supervisor is asked each time, and says.

Libraries and extensions are loaded through it while it is open. Once it is closed, the code that the process can run is
the code that it has (sandbox.judge.code_trap): none is mapped anew, none is made of data.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import fcntl
import functools
import os
import platform
import select
import struct
import threading

from sandbox.types import DeviceError

_RECEIVE, _SEND = 0xC0502100, 0xC0182101
_NOTICE_BYTES = 80
_ANSWER = struct.Struct("<QqiI")
_GO_ON = 1
_PIDFD_GETFD = 438
_MMAP = {"x86_64": 9, "aarch64": 222}.get(platform.machine())


class CodeGate:
    """Answers the kernel's questions about one process, which wait until it does, in a thread that ends with it."""

    def __init__(self, listener: int) -> None:
        """`listener`: ours from now on; what seccomp.ask_before_executable has returned."""
        self._listener = listener
        self._allowed: tuple[int | None, ...] | None = None
        """System calls; None: all."""
        self.has_refused = False
        """Somebody has asked in vain."""
        threading.Thread(target=self._answer, name="code-gate", daemon=True).start()

    @staticmethod
    @functools.cache
    def is_possible() -> bool:
        """Whether we may take descriptors out of other processes here."""
        own = os.pidfd_open(os.getpid())
        try:
            copy = _take(own, own)
        finally:
            os.close(own)
        if copy >= 0:
            os.close(copy)
        return copy >= 0

    @classmethod
    def of(cls, pid: int, listener: int | None) -> CodeGate | None:
        """Takes the listener out of the table of a process that nobody else's code has run in; None where it has
        none. Raises DeviceError."""
        if listener is None:
            return None
        process = os.pidfd_open(pid)
        try:
            ours = _take(process, listener)
        finally:
            os.close(process)
        if ours < 0:
            raise DeviceError(f"process {pid} has a filter of code that nobody can answer for: pidfd_getfd is refused")
        return cls(ours)

    def narrow(self) -> None:
        """From here on files can be mapped as code, but what is mapped stays as it is."""
        self._allowed = (_MMAP,)

    def close(self) -> None:
        """No more memory becomes executable."""
        self._allowed = ()

    def _answer(self) -> None:
        poll = select.poll()
        poll.register(self._listener, select.POLLIN)
        try:
            while True:
                ((_, happened),) = poll.poll()
                if happened & select.POLLIN:
                    self._answer_one()
                elif happened:
                    return
        finally:
            os.close(self._listener)

    def _answer_one(self) -> None:
        notice = bytearray(_NOTICE_BYTES)
        with contextlib.suppress(OSError):  # who asked has been interrupted or has ended
            fcntl.ioctl(self._listener, _RECEIVE, notice)
            asker, call = struct.unpack_from("<Q8xi", notice)
            may = self._allowed is None or call in self._allowed
            self.has_refused |= not may
            answer = _ANSWER.pack(asker, 0, 0 if may else -errno.EPERM, _GO_ON if may else 0)
            fcntl.ioctl(self._listener, _SEND, bytearray(answer))


def _take(process: int, descriptor: int) -> int:
    """A descriptor of another process as one of ours; negative where that is not allowed."""
    return ctypes.CDLL(None).syscall(_PIDFD_GETFD, process, descriptor, 0)
