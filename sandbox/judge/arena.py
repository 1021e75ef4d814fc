"""Shared memory between the supervisor and one worker, and the supervisor's view into a worker's own memory.

The memory is a sealed memfd: no side can shrink it under the other's feet.

    | pointers of outputs | weights | slot 0 | slot 1 | …      (every tensor starts on a 64-byte boundary)
"""

from __future__ import annotations

import contextlib
import ctypes
import fcntl
import mmap
import os
from typing import Any

ALIGNMENT = 64
TABLE_BYTES = 1 << 16
_F_ADD_SEALS = 1033
_SEALS = 0x0001 | 0x0002 | 0x0004  # no more seals, no shrinking, no growing


class MemoryAccessError(RuntimeError):
    """The supervisor could not read or write a worker's memory."""


class Arena:
    """A mapped block of shared memory."""

    def __init__(self, fd: int, size: int) -> None:
        self.fd = fd
        self.size = size
        self.memory = mmap.mmap(fd, size, mmap.MAP_SHARED, mmap.PROT_READ | mmap.PROT_WRITE)

    @classmethod
    def create(cls, size: int) -> Arena:
        fd = os.memfd_create("arena", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
        os.ftruncate(fd, size)
        fcntl.fcntl(fd, _F_ADD_SEALS, _SEALS)
        return cls(fd, size)

    def close(self) -> None:
        os.close(self.fd)
        with contextlib.suppress(BufferError):  # a NumPy view is still alive; the mapping goes with it
            self.memory.close()


def align(num_bytes: int) -> int:
    return -(-num_bytes // ALIGNMENT) * ALIGNMENT


def span_bytes(leaf: dict[str, Any], itemsize: int) -> int:
    """Bytes from a strided tensor's first element to past its last; strides are in elements, never negative."""
    if any(size == 0 for size in leaf["shape"]):
        return 0
    return (1 + sum((size - 1) * step for size, step in zip(leaf["shape"], leaf["stride"], strict=True))) * itemsize


class _IoVec(ctypes.Structure):
    _fields_ = [("base", ctypes.c_void_p), ("length", ctypes.c_size_t)]


def _load_libc() -> ctypes.CDLL:
    libc = ctypes.CDLL(None, use_errno=True)
    for call in (libc.process_vm_readv, libc.process_vm_writev):
        call.argtypes = [
            ctypes.c_int,
            ctypes.POINTER(_IoVec),
            ctypes.c_ulong,
            ctypes.POINTER(_IoVec),
            ctypes.c_ulong,
            ctypes.c_ulong,
        ]
        call.restype = ctypes.c_ssize_t
    return libc


_LIBC = _load_libc()


def read_memory(pid: int, address: int, into: memoryview | bytearray | mmap.mmap, offset: int, num_bytes: int) -> None:
    """Copies bytes of process `pid` into `into[offset:]`. Raises MemoryAccessError."""
    _transfer(_LIBC.process_vm_readv, pid, address, into, offset, num_bytes)


def write_memory(pid: int, address: int, data: bytearray) -> None:
    """Writes into process `pid`. Raises MemoryAccessError."""
    _transfer(_LIBC.process_vm_writev, pid, address, data, 0, len(data))


def _transfer(call: Any, pid: int, address: int, buffer: Any, offset: int, num_bytes: int) -> None:
    if num_bytes == 0:
        return
    if offset + num_bytes > len(buffer):
        raise MemoryAccessError(f"{num_bytes} bytes do not fit behind offset {offset} of a block of {len(buffer)}")
    local = (ctypes.c_char * num_bytes).from_buffer(buffer, offset)
    done = 0
    while done < num_bytes:
        mine = _IoVec(ctypes.addressof(local) + done, num_bytes - done)
        theirs = _IoVec(address + done, num_bytes - done)
        moved = call(pid, ctypes.byref(mine), 1, ctypes.byref(theirs), 1, 0)
        if moved <= 0:
            error = ctypes.get_errno()
            raise MemoryAccessError(f"process {pid}, address {address:#x}, {num_bytes} bytes: {os.strerror(error)}")
        done += moved
