"""System calls that a candidate's process, or an agent's shell, may not make, as seccomp filters.

candidate   Set on the worker before anything loads. The scan of symbols keeps a kernel from calling these by name, but
            machine code needs no names: the two bytes of the instruction can stand in any constant. What is certainly
            no kernel's business ends the process with SIGSYS, which the supervisor reports as a refusal; what a library
            might try in good faith fails with EPERM.
shell       For a sandbox that brings no filter of its own. Namespaces, mounts, tracing and the kernel's rarer doors
            fail with EPERM; starting programs and talking over sockets is what a shell is for.

x86-64 and AArch64 Linux. Elsewhere there is no filter, and users, namespaces and limits are left.
"""

from __future__ import annotations

import ctypes
import errno
import os
import platform
import struct
from typing import Literal

_X86_64, _AARCH64 = 0xC000003E, 0xC00000B7
_KILL, _ERRNO, _ASK, _ALLOW = 0x80000000, 0x00050000, 0x7FC00000, 0x7FFF0000
_EPERM, _ENOSYS = _ERRNO | errno.EPERM, _ERRNO | errno.ENOSYS
_LOAD, _EQUAL, _AT_LEAST, _ANY_BIT, _RETURN = 0x20, 0x15, 0x35, 0x45, 0x06
_X32_BIT = 0x40000000
_NUMBER_AT, _ARCH_AT, _ARGUMENTS_AT = 0, 4, 16
_PR_SET_SECCOMP, _MODE_FILTER = 22, 2
_SECCOMP, _SET_MODE_FILTER, _NEW_LISTENER = {"x86_64": 317, "aarch64": 277}, 1, 8
_PROT_EXEC = 4
_CLONE_THREAD = 0x00010000
_CLONE_NAMESPACES = 0x7E020080  # user, pid, network, ipc, uts, cgroup, mount, time
_WRITES = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC

# name: (x86-64, AArch64); None where the machine has no such call
_ESCAPES = {
    "ptrace": (101, 117),
    "process_vm_readv": (310, 270),
    "process_vm_writev": (311, 271),
    "pidfd_getfd": (438, 438),
    "unshare": (272, 97),
    "setns": (308, 268),
    "mount": (165, 40),
    "umount2": (166, 39),
    "pivot_root": (155, 41),
    "chroot": (161, 51),
    "open_tree": (428, 428),
    "move_mount": (429, 429),
    "fsopen": (430, 430),
    "bpf": (321, 280),
    "perf_event_open": (298, 241),
    "userfaultfd": (323, 282),
    "io_uring_setup": (425, 425),
    "keyctl": (250, 219),
    "add_key": (248, 217),
    "request_key": (249, 218),
    "init_module": (175, 105),
    "finit_module": (313, 273),
    "kexec_load": (246, 104),
    "open_by_handle_at": (304, 265),
}
_NO_KERNELS_BUSINESS = {
    "execve": (59, 221),
    "execveat": (322, 281),
    "fork": (57, None),
    "vfork": (58, None),
    "kill": (62, 129),
    "tkill": (200, 130),
    "pidfd_open": (434, 434),
    "pidfd_send_signal": (424, 424),
    "rt_sigqueueinfo": (129, 138),
    "rt_tgsigqueueinfo": (297, 240),
    # timers go on while a process stands still: they would take time from whoever is measured then
    "timer_create": (222, 107),
    "timer_settime": (223, 110),
    "setitimer": (38, 103),
    "alarm": (37, None),
    "timerfd_create": (283, 85),
    "timerfd_settime": (286, 86),
    "socket": (41, 198),
    "connect": (42, 203),
    "bind": (49, 200),
    "setuid": (105, 146),
    "setresuid": (117, 147),
    "setgid": (106, 144),
    "setresgid": (119, 149),
}
_FAILS = {
    "sched_setaffinity": (203, 122),
    "sched_setscheduler": (144, 119),
    "sched_setparam": (142, 118),
    "sched_setattr": (314, 274),
    "setpriority": (141, 140),
    "ioprio_set": (251, 30),
    "migrate_pages": (256, 238),
    "process_madvise": (440, 440),
    # so does what the kernel reads and writes by itself
    "io_setup": (206, 0),
    "readahead": (187, 213),
    "sync": (162, 81),
    "syncfs": (306, 267),
    "personality": (135, 92),
    "memfd_create": (319, 279),
    "shmget": (29, 194),
    "shmat": (30, 196),
    "msgget": (68, 186),
    "semget": (64, 190),
    "mq_open": (240, 180),
    "inotify_init1": (294, 26),
    "fanotify_init": (300, 262),
    "unlink": (87, None),
    "unlinkat": (263, 35),
    "rename": (82, None),
    "renameat2": (316, 276),
    "mkdir": (83, None),
    "mkdirat": (258, 34),
    "symlink": (88, None),
    "symlinkat": (266, 36),
    "link": (86, None),
    "linkat": (265, 37),
    "mknod": (133, None),
    "mknodat": (259, 33),
    "chmod": (90, None),
    "fchmodat": (268, 53),
    "chown": (92, None),
    "fchownat": (260, 54),
    "truncate": (76, 45),
    "creat": (85, None),
    "openat2": (437, 437),  # its flags lie in memory, where a filter cannot look
}
_MMAP, _MAP_ANONYMOUS = (9, 222), 0x20
_MAKES_EXECUTABLE = {"mprotect": (10, 226), "pkey_mprotect": (329, 288)}
"""By their third argument, as mmap."""
_ENDS_A_DESCRIPTOR = [(0, (3, 57)), (1, (33, None)), (1, (292, 24))]
"""close, dup2 and dup3, and which argument says so."""
_CLOSE_RANGE = 436
_CLONE, _CLONE3, _OPEN, _OPENAT = (56, 220), (435, 435), (2, None), (257, 56)
_TGKILL, _PRCTL = (234, 131), (157, 167)
_PR_SET_DUMPABLE = 4


Whose = Literal["candidate", "shell"]


def restrict(whose: Whose) -> bool:
    """Puts a filter on this process, and on threads it will start, for good; False where there is none.

    Needs no_new_privs, or CAP_SYS_ADMIN. Raises OSError where the kernel refuses a filter.
    """
    code = program(whose)
    if code is None:
        return False
    header, _buffer = _header(code)
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(_PR_SET_SECCOMP, _MODE_FILTER, header, 0, 0) != 0:
        number = ctypes.get_errno()
        raise OSError(number, f"seccomp: {os.strerror(number)}")
    return True


def ask_before_executable(free: int) -> int | None:
    """From here on whoever holds the descriptor that is returned says whether memory of this process may become
    executable (sandbox.judge.code_gate); None where the kernel has no such filters.

    `free`: a descriptor that may be mapped as code without asking, and that stays what it is.
    """
    number = _SECCOMP.get(platform.machine())
    if number is None:
        return None
    column = 0 if platform.machine() == "x86_64" else 1
    lines = [_line(_LOAD, _NUMBER_AT), *_mapped_as_code(_MMAP[column], free)]
    for numbers in _MAKES_EXECUTABLE.values():
        lines += _when_argument(numbers[column], 2, _ANY_BIT, _PROT_EXEC, action=_ASK)
    for argument, numbers in _ENDS_A_DESCRIPTOR:
        lines += _when_argument(numbers[column], argument, _EQUAL, free, action=_EPERM)
    lines += _when(_EQUAL, _CLOSE_RANGE, action=_EPERM)
    header, _buffer = _header(b"".join([*lines, _line(_RETURN, _ALLOW)]))
    libc = ctypes.CDLL(None, use_errno=True)
    listener = libc.syscall(number, _SET_MODE_FILTER, _NEW_LISTENER, header)
    return listener if listener >= 0 else None


def _mapped_as_code(mmap: int, free: int) -> list[bytes]:
    inner = [
        _line(_LOAD, _ARGUMENTS_AT + 8 * 4),
        *_when(_EQUAL, free, negate=True, action=_ASK),
        _line(_LOAD, _ARGUMENTS_AT + 8 * 3),
        *_when(_ANY_BIT, _MAP_ANONYMOUS, action=_ASK),
        _line(_RETURN, _ALLOW),
    ]
    asked = [_line(_LOAD, _ARGUMENTS_AT + 8 * 2), _line(_ANY_BIT, _PROT_EXEC, 0, len(inner)), *inner]
    return [_line(_EQUAL, mmap, 0, len(asked) + 1), *asked, _line(_LOAD, _NUMBER_AT)]


def _header(code: bytes) -> tuple[ctypes.c_char_p, object]:
    """What the kernel takes a filter from, and what has to live until it has."""
    buffer = ctypes.create_string_buffer(code, len(code))
    return ctypes.c_char_p(struct.pack("HxxxxxxQ", len(code) // 8, ctypes.addressof(buffer))), buffer


def program(whose: Whose) -> bytes | None:
    """The filter as BPF instructions of 8 bytes each, None where this machine's calls are not known."""
    known = {"x86_64": (_X86_64, 0), "aarch64": (_AARCH64, 1)}.get(platform.machine())
    if known is None:
        return None
    arch, column = known
    lines = [
        _line(_LOAD, _ARCH_AT),
        *_when(_EQUAL, arch, negate=True, action=_KILL),
        _line(_LOAD, _NUMBER_AT),
        *(_when(_AT_LEAST, _X32_BIT, action=_KILL) if arch == _X86_64 else []),
        *_when(_EQUAL, _CLONE3[column], action=_ENOSYS),  # libc then uses clone, whose flags a filter can read
    ]
    rules = _candidate_rules if whose == "candidate" else _shell_rules
    return b"".join([*lines, *rules(column), _line(_RETURN, _ALLOW)])


def _candidate_rules(column: int) -> list[bytes]:
    lines = []
    for numbers in (_ESCAPES | _NO_KERNELS_BUSINESS).values():
        lines += _when(_EQUAL, numbers[column], action=_KILL)
    for numbers in _FAILS.values():
        lines += _when(_EQUAL, numbers[column], action=_EPERM)
    lines += _when_argument(
        _TGKILL[column], 0, _EQUAL, os.getpid(), negate=True, action=_KILL
    )  # abort() signals itself
    # undumpable, it could not be looked at by a judge that is an ordinary user
    lines += _when_argument(_PRCTL[column], 0, _EQUAL, _PR_SET_DUMPABLE, action=_EPERM)
    lines += _when_argument(_CLONE[column], 0, _ANY_BIT, _CLONE_THREAD, negate=True, action=_KILL)
    lines += _when_argument(_OPEN[column], 1, _ANY_BIT, _WRITES, action=_EPERM)
    return lines + _when_argument(_OPENAT[column], 2, _ANY_BIT, _WRITES, action=_EPERM)


def _shell_rules(column: int) -> list[bytes]:
    lines = []
    for numbers in _ESCAPES.values():
        lines += _when(_EQUAL, numbers[column], action=_EPERM)
    return lines + _when_argument(_CLONE[column], 0, _ANY_BIT, _CLONE_NAMESPACES, action=_EPERM)


def _when(test: int, value: int | None, *, action: int, negate: bool = False) -> list[bytes]:
    """`action` where the number (not) meets the test; nothing for a call that the machine does not have."""
    if value is None:
        return []
    return [_line(test, value, *((1, 0) if negate else (0, 1))), _line(_RETURN, action)]


def _when_argument(
    number: int | None, argument: int, test: int, value: int, *, action: int, negate: bool = False
) -> list[bytes]:
    """`action` where the lower half of an argument of call `number` (not) meets the test."""
    if number is None:
        return []
    inner = [_line(_LOAD, _ARGUMENTS_AT + 8 * argument), *_when(test, value, action=action, negate=negate)]
    inner.append(_line(_LOAD, _NUMBER_AT))
    return [_line(_EQUAL, number, 0, len(inner)), *inner]


def _line(code: int, value: int, if_true: int = 0, if_false: int = 0) -> bytes:
    return struct.pack("HBBI", code, if_true, if_false, value)
