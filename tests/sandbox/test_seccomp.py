"""The filters on real processes: a fork applies one and tries what it forbids."""

from __future__ import annotations

import ctypes
import os
import platform
import signal
import socket
import subprocess
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from sandbox import seccomp

pytestmark = pytest.mark.skipif(
    platform.machine() not in ("x86_64", "aarch64"), reason="the system calls of this machine are not known"
)
LIBC = ctypes.CDLL(None, use_errno=True)
NUMBERS = 0 if platform.machine() == "x86_64" else 1


def status_of(whose: seccomp.Whose, act: Callable[[], object]) -> int:
    """As of os.waitpid: 0 where `act` returned true, status 1 where false, 2 where it raised PermissionError."""
    pid = os.fork()
    if pid == 0:
        code = 3
        try:
            LIBC.prctl(38, 1, 0, 0, 0)  # no_new_privs
            seccomp.restrict(whose)
            code = 0 if act() else 1
        except PermissionError:
            code = 2
        finally:
            os._exit(code)
    return os.waitpid(pid, 0)[1]


def in_a_thread() -> bool:
    seen: list[int] = []
    thread = threading.Thread(target=lambda: seen.append(1))
    thread.start()
    thread.join()
    return seen == [1]


def raw(name: str) -> Callable[[], object]:
    number = (seccomp._ESCAPES | seccomp._NO_KERNELS_BUSINESS)[name][NUMBERS]
    return lambda: LIBC.syscall(number, 0, 0, 0, 0) >= 0


def tgkill(pid: int, number: int) -> int:
    return LIBC.syscall(seccomp._TGKILL[NUMBERS], pid, pid, number)


def start_a_program() -> bool:
    pid = os.posix_spawn("/bin/true", ["true"], {})
    return os.waitpid(pid, 0)[1] == 0


@pytest.mark.parametrize(
    "act",
    [os.fork, socket.socket, lambda: os.kill(os.getppid(), 0), lambda: subprocess.run(["true"]), raw("ptrace")]
    + [raw(name) for name in ("process_vm_readv", "bpf", "unshare", "perf_event_open", "execve", "io_uring_setup")]
    + [raw(name) for name in ("timer_create", "timer_settime", "timerfd_create", "rt_sigqueueinfo")]
    + [lambda: signal.setitimer(signal.ITIMER_REAL, 1), lambda: tgkill(os.getppid(), 0) == 0],
)
def test_a_candidate_that_does_what_no_kernel_needs_is_killed(act) -> None:
    status = status_of("candidate", act)
    assert os.WIFSIGNALED(status) and os.WTERMSIG(status) == signal.SIGSYS


def test_a_candidate_may_signal_itself_and_stays_readable() -> None:
    assert status_of("candidate", lambda: tgkill(os.getpid(), 0) == 0) == 0
    assert os.WTERMSIG(status_of("candidate", os.abort)) == signal.SIGABRT
    assert status_of("candidate", lambda: LIBC.prctl(4, 0, 0, 0, 0) == -1 and LIBC.prctl(3, 0, 0, 0, 0) == 1) == 0


def test_what_a_candidate_needs_still_works(tmp_path) -> None:
    assert status_of("candidate", in_a_thread) == 0
    assert status_of("candidate", Path("/etc/passwd").read_text) == 0
    assert status_of("candidate", lambda: socket.socketpair()[0].fileno() > 0) == 0
    assert status_of("candidate", lambda: len(bytearray(64 << 20)) > 0) == 0


def test_a_candidate_may_not_make_or_change_files(tmp_path) -> None:
    file = tmp_path / "file"
    file.write_text("as it was")
    file.chmod(0o666)
    for act in (lambda: file.write_text("x"), (tmp_path / "new").touch, file.unlink, (tmp_path / "d").mkdir):
        assert os.waitstatus_to_exitcode(status_of("candidate", act)) == 2
    assert file.read_text() == "as it was" and os.listdir(tmp_path) == ["file"]


def test_a_shell_may_start_programs_and_not_make_namespaces() -> None:
    assert status_of("shell", start_a_program) == 0
    assert status_of("shell", lambda: socket.socket().fileno() > 0) == 0
    assert os.waitstatus_to_exitcode(status_of("shell", raw("unshare"))) == 1
    assert os.waitstatus_to_exitcode(status_of("shell", raw("ptrace"))) == 1
    assert os.waitstatus_to_exitcode(status_of("shell", raw("mount"))) == 1
    new_user_namespace = 0x10000000 | signal.SIGCHLD
    clone = seccomp._CLONE[NUMBERS]
    assert (
        os.waitstatus_to_exitcode(status_of("shell", lambda: LIBC.syscall(clone, new_user_namespace, 0, 0, 0) >= 0))
        == 1
    )


@pytest.mark.skipif(platform.machine() != "x86_64", reason="the second set of calls of x86-64")
def test_the_other_numbering_of_x86_64_is_no_way_around() -> None:
    x32_fork = 0x40000000 | 57
    status = status_of("candidate", lambda: LIBC.syscall(x32_fork) >= 0)
    assert os.WIFSIGNALED(status) and os.WTERMSIG(status) == signal.SIGSYS


def test_a_machine_whose_calls_are_not_known_has_no_filter(monkeypatch) -> None:
    monkeypatch.setattr(platform, "machine", lambda: "riscv64")
    assert seccomp.program("candidate") is None and seccomp.restrict("candidate") is False
