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

import numpy as np

ALIGNMENT = 64
TABLE_BYTES = 1 << 16
_F_ADD_SEALS = 1033
_MAX_PIECES = 1024  # of one system call
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


def read_elements(pid: int, addresses: np.ndarray, itemsize: int) -> bytes:
    """The `itemsize` bytes at each of the uint64 `addresses` of process `pid`. Raises MemoryAccessError."""
    into = bytearray(len(addresses) * itemsize)
    if not into:
        return bytes(into)
    local = (ctypes.c_char * len(into)).from_buffer(into)
    for start in range(0, len(addresses), _MAX_PIECES):
        part = addresses[start : start + _MAX_PIECES]
        pieces = np.empty((len(part), 2), np.uint64)
        pieces[:, 0], pieces[:, 1] = part, itemsize
        mine = _IoVec(ctypes.addressof(local) + start * itemsize, len(part) * itemsize)
        theirs = ctypes.cast(pieces.ctypes.data, ctypes.POINTER(_IoVec))
        if _LIBC.process_vm_readv(pid, ctypes.byref(mine), 1, theirs, len(part), 0) != len(part) * itemsize:
            error = os.strerror(ctypes.get_errno())
            raise MemoryAccessError(f"process {pid}, {len(part)} elements from {int(part[0]):#x} on: {error}")
    return bytes(into)


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
