"""The bytes of a record log: how a record is written, and whether one is whole.

segment = b"jaxagent log 1\\n\\0" record record …
record  = header key payload
header  = magic, kind, key length, payload length, crc32 of the payload, crc32 of the header so far and the key
"""

from __future__ import annotations

import mmap
import struct
import zlib
from dataclasses import dataclass

SEGMENT_HEADER = b"jaxagent log 1\n\0"
_RECORD_MAGIC = b"\xa7rec"
_HEADER = struct.Struct("<4sBxHIII")
_HEAD_CRC_OFFSET = _HEADER.size - 4


@dataclass(frozen=True, slots=True)
class Entry:
    """Where one record lies."""

    kind: int
    key: bytes
    segment: int
    offset: int
    payload_bytes: int
    crc32: int

    @property
    def payload_offset(self) -> int:
        return self.offset + _HEADER.size + len(self.key)

    @property
    def end(self) -> int:
        return self.payload_offset + self.payload_bytes


def encode(kind: int, key: bytes, payload: bytes) -> bytes:
    """A record, header included."""
    head = _HEADER.pack(_RECORD_MAGIC, kind, len(key), len(payload), zlib.crc32(payload), 0)[:_HEAD_CRC_OFFSET]
    return b"".join((head, struct.pack("<I", zlib.crc32(key, zlib.crc32(head))), key, payload))


def parse(view: mmap.mmap, segment: int, offset: int, *, check_payload: bool) -> Entry | None:
    """The whole, valid record at `offset`, or None."""
    if offset + _HEADER.size > len(view):
        return None
    magic, kind, key_bytes, payload_bytes, payload_crc, head_crc = _HEADER.unpack_from(view, offset)
    key_at = offset + _HEADER.size
    key = view[key_at : key_at + key_bytes]
    entry = Entry(kind, key, segment, offset, payload_bytes, payload_crc)
    if magic != _RECORD_MAGIC or len(key) != key_bytes or entry.end > len(view):
        return None
    if zlib.crc32(key, zlib.crc32(view[offset : offset + _HEAD_CRC_OFFSET])) != head_crc:
        return None
    if check_payload and zlib.crc32(view[entry.payload_offset : entry.end]) != payload_crc:
        return None
    return entry


def record_follows(view: mmap.mmap, segment: int, offset: int) -> bool:
    """Whether a valid record lies anywhere behind `offset`."""
    at = view.find(_RECORD_MAGIC, offset + 1)
    while at >= 0:
        if parse(view, segment, at, check_payload=True) is not None:
            return True
        at = view.find(_RECORD_MAGIC, at + 1)
    return False
