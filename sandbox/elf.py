"""Dynamic symbols of a 64-bit little-endian ELF shared object, so that no binutils are needed where it is judged."""

from __future__ import annotations

import struct
from dataclasses import dataclass

_SHT_DYNSYM, _SHT_VERSYM, _SHT_VERNEED, _SHT_DYNAMIC = 11, 0x6FFFFFFF, 0x6FFFFFFE, 6
_DT_NEEDED = 1


@dataclass(frozen=True, slots=True)
class DynamicSymbols:
    """What an object takes from others and what it offers."""

    undefined: dict[str, str | None]
    """Symbol name to the library whose version it asks for (`libm.so.6`), None where it is unversioned."""
    exported: set[str]
    needed: list[str]
    """Libraries the loader brings in (DT_NEEDED)."""


def dynamic_symbols(image: bytes) -> DynamicSymbols:
    """Raises ValueError where `image` is no 64-bit little-endian ELF object with a dynamic symbol table."""
    if image[:4] != b"\x7fELF" or image[4:6] != b"\x02\x01":
        raise ValueError("not a 64-bit little-endian ELF object")
    try:
        return _parse(image)
    except (struct.error, IndexError, OverflowError, UnicodeDecodeError) as error:
        raise ValueError(f"damaged ELF object: {error}") from error


def _parse(image: bytes) -> DynamicSymbols:
    sections = _sections(image)
    by_type = {section[1]: section for section in sections}
    if _SHT_DYNSYM not in by_type:
        raise ValueError("no dynamic symbol table")
    _, _, _, offset, size, link = by_type[_SHT_DYNSYM]
    strings = _bytes(image, sections[link])
    versions = _version_indices(image, by_type.get(_SHT_VERSYM))
    libraries = _version_libraries(image, by_type.get(_SHT_VERNEED), sections)
    undefined: dict[str, str | None] = {}
    exported: set[str] = set()
    for index, start in enumerate(range(offset, offset + size, 24)):
        name_at, info, other, section, _, _ = struct.unpack_from("<IBBHQQ", image, start)
        name = _string(strings, name_at)
        if not name:
            continue
        if section == 0:
            undefined[name] = libraries.get(versions[index] & 0x7FFF) if index < len(versions) else None
        elif info >> 4 in (1, 2, 10) and other & 3 in (0, 3):  # global, weak or unique; default or protected
            exported.add(name)
    return DynamicSymbols(undefined=undefined, exported=exported, needed=_needed(image, by_type, sections))


def _sections(image: bytes) -> list[tuple[int, int, int, int, int, int]]:
    """(name, type, flags, offset, size, link) of each section."""
    (table,) = struct.unpack_from("<Q", image, 0x28)
    entry_size, count = struct.unpack_from("<HH", image, 0x3A)
    found = []
    for start in range(table, table + entry_size * count, entry_size):
        name, kind, flags, _, offset, size, link = struct.unpack_from("<IIQQQQI", image, start)
        found.append((name, kind, flags, offset, size, link))
    return found


def _version_indices(image: bytes, section: tuple[int, int, int, int, int, int] | None) -> tuple[int, ...]:
    if section is None:
        return ()
    return struct.unpack_from(f"<{section[4] // 2}H", image, section[3])


def _version_libraries(
    image: bytes,
    section: tuple[int, int, int, int, int, int] | None,
    sections: list[tuple[int, int, int, int, int, int]],
) -> dict[int, str]:
    """Version index to library name, from the chain of Verneed and Vernaux records."""
    if section is None:
        return {}
    strings = _bytes(image, sections[section[5]])
    libraries: dict[int, str] = {}
    at = section[3]
    while True:
        _, count, file_at, aux, following = struct.unpack_from("<HHIII", image, at)
        entry = at + aux
        for _ in range(count):
            _, _, version_index, _, step = struct.unpack_from("<IHHII", image, entry)
            libraries[version_index & 0x7FFF] = _string(strings, file_at)
            entry += step
        if not following:
            return libraries
        at += following


def _needed(
    image: bytes,
    by_type: dict[int, tuple[int, int, int, int, int, int]],
    sections: list[tuple[int, int, int, int, int, int]],
) -> list[str]:
    section = by_type.get(_SHT_DYNAMIC)
    if section is None:
        return []
    strings = _bytes(image, sections[section[5]])
    entries = [struct.unpack_from("<qQ", image, start) for start in range(section[3], section[3] + section[4], 16)]
    return [_string(strings, value) for tag, value in entries if tag == _DT_NEEDED]


def _bytes(image: bytes, section: tuple[int, int, int, int, int, int]) -> bytes:
    return image[section[3] : section[3] + section[4]]


def _string(strings: bytes, offset: int) -> str:
    return strings[offset : strings.index(b"\0", offset)].decode("ascii")
