"""Calls of the CUDA runtime library that torch does not offer, on the copy of it that torch has loaded."""

from __future__ import annotations

import ctypes

import torch


class CudaRuntime:
    """Of the one device of this process."""

    _resets_persisting = True

    def __init__(self) -> None:
        major = str(torch.version.cuda).partition(".")[0]
        self._library = ctypes.CDLL(f"libcudart.so.{major}")
        self._memset = self._library.cudaMemsetAsync
        self._memset.argtypes = [ctypes.c_void_p, ctypes.c_int, ctypes.c_size_t, ctypes.c_void_p]
        self._library.cudaGetErrorString.restype = ctypes.c_char_p

    def fill(self, address: int, byte: int, num_bytes: int) -> None:
        """On the default stream; every stream that torch uses by default is that one."""
        self._check(self._memset(address, byte, num_bytes, None))

    def forget_persisting_lines(self) -> None:
        if self._resets_persisting and self._library.cudaCtxResetPersistingL2Cache():
            self._resets_persisting = False  # a GPU without the feature; nothing can persist there
            self.clear_error()

    def pin(self, address: int, num_bytes: int) -> None:
        if self._library.cudaHostRegister(ctypes.c_void_p(address), ctypes.c_size_t(num_bytes), 0):
            self.clear_error()

    def limit(self, which: int) -> int | None:
        """None where the device does not answer any more."""
        value = ctypes.c_size_t()
        failed = self._library.cudaDeviceGetLimit(ctypes.byref(value), which)
        return None if failed else value.value

    def clear_error(self) -> None:
        self._library.cudaGetLastError()

    def raise_error(self) -> None:
        """Raises RuntimeError where a launch has failed and nobody asked: it did nothing, and said nothing."""
        self._check(self._library.cudaGetLastError())

    def _check(self, status: int) -> None:
        if status:
            text = self._library.cudaGetErrorString(status).decode()
            raise RuntimeError(f"CUDA error {status}: {text}; a launch failed, check its grid, block and shared memory")
