"""Which function of a shared library an address lies in, by the library's own table of symbols."""

from __future__ import annotations

import functools
import os
import re
import struct
from pathlib import Path

import numpy as np

_SYMTAB, _DYNSYM, _PT_LOAD = 2, 11, 1
_FUNCTION_TYPES = (2, 10)
_LONGEST_NAME = 4096
_PAGE = 4096
_PADDING = 64
"""Between two functions that follow each other, in bytes at most."""
_SYMBOL = np.dtype(
    [("name", "<u4"), ("info", "u1"), ("other", "u1"), ("section", "<u2"), ("value", "<u8"), ("size", "<u8")]
)


class CodeNames:
    """Functions of a 64-bit little-endian ELF library: all of them, or what it exports where it was stripped."""

    def __init__(self, path: Path) -> None:
        """Raises OSError where it cannot be read, ValueError where it is no such library."""
        self._path = path
        with path.open("rb") as file:
            header = file.read(64)
            if header[:6] != b"\x7fELF\x02\x01":
                raise ValueError(f"{path} is no 64-bit little-endian ELF library")
            programs, sections = struct.unpack_from("<QQ", header, 0x20)
            program_size, num_programs, section_size, num_sections = struct.unpack_from("<HHHH", header, 0x36)
            file.seek(programs)
            table = file.read(program_size * num_programs)
            self._segments = [
                struct.unpack_from("<QQ", table, start + 8)
                for start in range(0, len(table), program_size)
                if struct.unpack_from("<I", table, start)[0] == _PT_LOAD
            ]
            file.seek(sections)
            table = file.read(section_size * num_sections)
            # type, offset, size, link
            found = {
                struct.unpack_from("<I", table, start + 4)[0]: struct.unpack_from("<QQI", table, start + 24)
                for start in range(0, len(table), section_size)
            }
            offset, size, link = found.get(_SYMTAB) or found.get(_DYNSYM) or (0, 0, 0)
            self._strings, self._strings_bytes = struct.unpack_from("<QQ", table, link * section_size + 24)
            file.seek(offset)
            symbols = np.frombuffer(file.read(size), dtype=_SYMBOL)
        symbols = symbols[np.isin(symbols["info"] & 15, _FUNCTION_TYPES) & (symbols["section"] != 0)]
        self._symbols = symbols[np.argsort(symbols["value"], kind="stable")]

    def at(self, file_offset: int) -> str:
        """The name, as the linker knows it, of the function at or before a place in the file; "" before the first."""
        address = next(
            (file_offset - offset + start for offset, start in reversed(self._segments) if offset <= file_offset),
            file_offset,
        )
        index = int(np.searchsorted(self._symbols["value"], address, side="right")) - 1
        if index < 0:
            return ""
        with self._path.open("rb") as file:
            file.seek(self._strings + int(self._symbols["name"][index]))
            return file.read(_LONGEST_NAME).partition(b"\0")[0].decode("ascii", errors="replace")

    def pages_of(self, names: re.Pattern[str]) -> list[tuple[int, int]]:
        """Whole pages of the file, [first byte, past the last), in which there are only functions with such names."""
        starts = self._symbols["value"].astype(np.int64).tolist()
        sizes = self._symbols["size"].astype(np.int64).tolist()
        spans: list[list[int]] = []
        clear = 0  # where the last function ends that is not meant
        for start, size, meant in zip(starts, sizes, self._are_named(names), strict=True):
            if not meant:
                clear = max(clear, start + size)
                if spans:
                    spans[-1][1] = min(spans[-1][1], start)
            elif spans and clear <= spans[-1][0] and start - spans[-1][1] <= _PADDING:
                spans[-1][1] = max(spans[-1][1], start + size)
            else:
                spans.append([max(start, clear), start + size])
        pages = [(-(-start // _PAGE) * _PAGE, end // _PAGE * _PAGE) for start, end in spans]
        return [(self._offset_of(start), self._offset_of(end)) for start, end in pages if start < end]

    def _are_named(self, names: re.Pattern[str]) -> list[bool]:
        with self._path.open("rb") as file:
            file.seek(self._strings)
            strings = file.read(self._strings_bytes)
        found = []
        for start in self._symbols["name"].tolist():
            name = strings[start : strings.index(b"\0", start)].decode("ascii", errors="replace")
            found.append(names.search(name) is not None)
        return found

    def _offset_of(self, address: int) -> int:
        return next((address - start + offset for offset, start in reversed(self._segments) if start <= address), 0)


@functools.cache
def _names(path: str, _size: int, _changed: int) -> CodeNames:
    return CodeNames(Path(path))


def code_names(path: str) -> CodeNames:
    """As CodeNames(path), read once for each file there has been."""
    status = os.stat(path)
    return _names(path, status.st_size, status.st_mtime_ns)
