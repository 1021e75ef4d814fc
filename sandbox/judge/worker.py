"""The supervisor's handle on one worker process: messages, stopping and resuming it, its memory, its end."""

from __future__ import annotations

import contextlib
import os
import signal
import threading
import time
from dataclasses import dataclass
from typing import Any

import numpy as np

from sandbox.judge.arena import Arena, read_memory
from sandbox.judge.channel import ChannelClosedError, ChannelTimeoutError, ProtocolError
from sandbox.judge.hygiene import Bounds, kill_user
from sandbox.judge.values import ITEMSIZE
from sandbox.judge.zygote import Zygote
from sandbox.types import DeviceError

_STOP_TIMEOUT_S = 10.0
_DRAIN_TIMEOUT_S = 1.0
_MAX_PRINTED = 2000


class WorkerError(Exception):
    """A worker could not do what it was asked; whose fault that is depends on the worker."""


class WorkerReplyError(WorkerError):
    """The worker is alive and answered with an error."""

    def __init__(self, error: dict[str, Any]) -> None:
        super().__init__(f"{error.get('type')}: {error.get('message')}")
        self.kind = str(error.get("type"))
        self.message = str(error.get("message"))[:2000]
        self.traceback = str(error.get("traceback", ""))[:3000]
        self.observed = {name: error.get(name) for name in ("operators", "tampering")}
        """What the process said of itself beside its failure."""


class WorkerDiedError(WorkerError):
    """The process ended; `status` as of os.waitpid, `stderr` the last it wrote."""

    def __init__(self, status: int, stderr: str) -> None:
        if os.WIFSIGNALED(status):
            self.reason = f"killed by {_signal_name(os.WTERMSIG(status))}"
        else:
            self.reason = f"exited with status {os.waitstatus_to_exitcode(status)}"
        super().__init__(self.reason)
        self.stderr = stderr
        self.by_filter = os.WIFSIGNALED(status) and os.WTERMSIG(status) == signal.SIGSYS
        """Its last act was a system call that seccomp.py does not allow."""


class WorkerTimeoutError(WorkerError):
    """No answer within the time limit."""


@dataclass(frozen=True, slots=True)
class Region:
    """Where the arena lies in the worker's address space, as the kernel tells it."""

    start: int
    end: int

    def overlaps(self, start: int, end: int) -> bool:
        return start < self.end and end > self.start


class _Printed(threading.Thread):
    """Keeps the end of what a worker prints, so that it neither fills a pipe nor is lost; ends with the worker."""

    def __init__(self, read_end: int) -> None:
        super().__init__(daemon=True)
        self._read_end = read_end
        self.tail = b""
        self.start()

    def run(self) -> None:
        while chunk := os.read(self._read_end, 1 << 16):
            self.tail = (self.tail + chunk)[-_MAX_PRINTED:]
        os.close(self._read_end)


class Worker:
    """One forked worker. Use as a context manager: its process group is dead and reaped on exit."""

    def __init__(self, zygote: Zygote, role: str, bounds: Bounds) -> None:
        self._zygote = zygote
        self._uid = bounds.uid
        self._cores = sorted(bounds.cores) if bounds.device == "cpu" else []
        read_end, write_end = os.pipe()
        try:
            self.pid, self.channel = zygote.fork(role, bounds, stderr=write_end)
        except BaseException:
            os.close(read_end)
            raise
        finally:
            os.close(write_end)
        self._printed = _Printed(read_end)
        self._status: int | None = None
        self.arena: Arena | None = None
        self.region = Region(0, 0)

    def __enter__(self) -> Worker:
        return self

    def __exit__(self, *exc: object) -> None:
        self.kill()
        self.channel.close()
        self._printed.join(_DRAIN_TIMEOUT_S)
        if self.arena is not None:
            self.arena.close()

    def ask(self, message: dict[str, Any], *, deadline: float, fds: list[int] | None = None) -> dict[str, Any]:
        """Sends and waits for the reply. Raises a WorkerError."""
        self.send(message, fds=fds)
        return self.receive(deadline=deadline)

    def send(self, message: dict[str, Any], *, fds: list[int] | None = None) -> None:
        try:
            self.channel.send(message, fds=fds)
        except ChannelClosedError:
            raise self._died() from None

    def receive(self, *, deadline: float) -> dict[str, Any]:
        try:
            reply = self.channel.receive(max(0.0, deadline - time.monotonic()))
        except ChannelTimeoutError:
            raise WorkerTimeoutError("no answer within the time limit") from None
        except ChannelClosedError:
            raise self._died() from None
        except ProtocolError as error:
            raise WorkerReplyError({"type": "ProtocolError", "message": str(error)}) from error
        if "error" in reply:
            raise WorkerReplyError(reply["error"] if isinstance(reply["error"], dict) else {})
        return reply

    def map(
        self,
        arena: Arena,
        *,
        inputs: dict[str, Any],
        leaves: list[dict[str, Any]],
        slots: list[list[int]],
        pinned: int,
        deadline: float,
    ) -> None:
        """Shares `arena` with the worker and finds where it lies there; `pinned`: bytes of it that inputs take."""
        self.arena = arena
        self.ask(
            {"op": "map", "size": arena.size, "inputs": inputs, "leaves": leaves, "slots": slots, "pinned": pinned},
            deadline=deadline,
            fds=[arena.fd],
        )
        inode = os.fstat(arena.fd).st_ino
        with open(f"/proc/{self.pid}/maps") as maps:
            for line in maps:
                fields = line.split()
                if len(fields) >= 6 and fields[4] == str(inode) and fields[5].startswith("/memfd:arena"):
                    start, _, end = fields[0].partition("-")
                    self.region = Region(int(start, 16), int(end, 16))
                    return
        raise WorkerReplyError({"type": "ProtocolError", "message": "it has no arena mapped"})

    def stop(self) -> None:
        """Returns once every thread of the worker is stopped."""
        os.killpg(self.pid, signal.SIGSTOP)
        deadline = time.monotonic() + _STOP_TIMEOUT_S
        while not self._is_stopped():
            if time.monotonic() > deadline:
                raise DeviceError(f"worker {self.pid} does not stop")
            time.sleep(0.00005)

    def resume(self) -> None:
        os.killpg(self.pid, signal.SIGCONT)

    def spread(self) -> None:
        """Puts the threads of a stopped worker onto cores of their own, as far as there are any.

        Threads that wake together often wake on one core, and the kernel may leave them there for longer than a call
        takes. The first thread is free again after `wake`, since those it starts have its cores.
        """
        others = [thread for thread in self._threads() if thread != self.pid] if len(self._cores) > 1 else []
        for index, thread in enumerate(others):
            _bind(thread, {self._cores[1 + index % (len(self._cores) - 1)]})
        if others:
            _bind(self.pid, {self._cores[0]})

    def wake(self) -> None:
        """`resume`, where `spread` has put the threads."""
        self.resume()
        if len(self._cores) > 1:
            _bind(self.pid, set(self._cores))

    def _threads(self) -> list[int]:
        try:
            return sorted(map(int, os.listdir(f"/proc/{self.pid}/task")))
        except (FileNotFoundError, ProcessLookupError):
            return []  # it has ended

    def read_array(self, leaf: dict[str, Any]) -> np.ndarray:
        """A tensor of the worker as an array of its shape; bfloat16 comes widened to float32."""
        itemsize = ITEMSIZE[leaf["dtype"]]
        shape, stride = tuple(leaf["shape"]), tuple(step * itemsize for step in leaf["stride"])
        if 0 in shape:
            return np.zeros(shape, dtype=numpy_dtype(leaf["dtype"]))
        num_bytes = itemsize + sum((size - 1) * step for size, step in zip(shape, stride, strict=True))
        buffer = bytearray(num_bytes)
        read_memory(self.pid, leaf["address"], buffer, 0, num_bytes)
        flat = np.frombuffer(buffer, dtype=numpy_dtype(leaf["dtype"]))
        return widen(np.lib.stride_tricks.as_strided(flat, shape=shape, strides=stride), leaf["dtype"])

    @property
    def has_ended(self) -> bool:
        return self._status is not None or not os.path.exists(f"/proc/{self.pid}/stat") or _is_zombie(self.pid)

    def begin_end(self) -> None:
        """Sends the end on its way; `kill` waits for it."""
        if self._status is None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self.pid, signal.SIGKILL)

    def kill(self) -> int:
        """Kills the process group (and whatever its user left behind) and reaps the worker; its status."""
        if self._status is None:
            self.begin_end()
            self._status = self._zygote.reap(self.pid)
            if self._uid is not None:
                kill_user(self._uid)
        return self._status

    def _died(self) -> WorkerDiedError:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.pid, signal.SIGCONT)  # a stopped group would not finish dying of its own error
        deadline = time.monotonic() + 0.2
        while time.monotonic() < deadline and not _is_zombie(self.pid):
            time.sleep(0.001)  # let it die of what ails it, so that the status tells; then make sure
        status = self.kill()
        self._printed.join(_DRAIN_TIMEOUT_S)
        return WorkerDiedError(status, self._printed.tail.decode(errors="replace"))

    def _is_stopped(self) -> bool:
        try:
            threads = os.listdir(f"/proc/{self.pid}/task")
            return all(_state(f"/proc/{self.pid}/task/{thread}/stat") in "TtZX" for thread in threads)
        except (FileNotFoundError, ProcessLookupError):
            return self.has_ended


def _bind(thread: int, cores: set[int]) -> None:
    with contextlib.suppress(ProcessLookupError):  # it has ended
        os.sched_setaffinity(thread, cores)


def _signal_name(number: int) -> str:
    """Signals of the real-time range have no names of their own."""
    return signal.Signals(number).name if number in set(signal.Signals) else f"signal {number}"


def _state(path: str) -> str:
    with open(path) as stat:
        return stat.read().rpartition(")")[2].split()[0]


def _is_zombie(pid: int) -> bool:
    try:
        return _state(f"/proc/{pid}/stat") in "ZX"
    except (FileNotFoundError, ProcessLookupError):
        return True


def numpy_dtype(name: str) -> Any:
    """NumPy's type for the bytes of a torch type."""
    return np.dtype({"bfloat16": "uint16"}.get(name, name))


def widen(array: np.ndarray, dtype: str) -> np.ndarray:
    """float32 for the bits of bfloat16; other types as they are."""
    return (array.astype(np.uint32) << 16).view(np.float32) if dtype == "bfloat16" else array
