"""An append-only log of checksummed records in numbered segment files: one writer, any number of readers.

A record (record_format.py) is written whole or not at all: a torn one at the very end (the writer was killed) is cut
off by the next writer and ignored by readers. Anything else that does not check is corruption and raises. Only the last
segment is checked in full when a log is opened; payloads of earlier ones are checked when they are read, or by
`verify`.
"""

from __future__ import annotations

import errno
import fcntl
import logging
import mmap
import os
import zlib
from collections.abc import Iterator
from pathlib import Path

from rollout.record_format import SEGMENT_HEADER, Entry, encode, parse, record_follows

_FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)

logger = logging.getLogger(__name__)


class StoreError(OSError):
    """The log cannot be read or written as asked; the message says what to do."""


class CorruptStoreError(StoreError):
    """Bytes in the log are not those that were written."""


class RecordLog:
    """Open it, iterate `scan` once to get to the end of the log, then `append`; later `scan`s yield what is new."""

    def __init__(self, folder: str | Path, *, writable: bool, fsync: bool, segment_bytes: int) -> None:
        """Raises StoreError when another process writes this log, or when there is none to read."""
        self.folder = Path(folder)
        self._fsync, self._segment_bytes = fsync, segment_bytes
        self._lock_fd, self._fd = -1, -1
        self._segment, self._offset = 0, 0  # how far the log has been scanned
        if writable:
            self.folder.mkdir(parents=True, exist_ok=True)
            self._lock_fd = _lock(self.folder / "lock")
        elif not self.folder.is_dir():
            raise StoreError(errno.ENOENT, f"{self.folder}: no store here; a run keeps its own in <run folder>/store")

    def scan(self) -> Iterator[Entry]:
        """Every record that follows those already scanned; a writer also cuts off a torn tail and can append then.

        Raises CorruptStoreError.
        """
        segments = self._segments()
        for segment in segments:
            if segment < self._segment:
                continue
            if segment != self._segment:
                self._segment, self._offset = segment, 0
            yield from self._scan_segment(segment, is_last=segment == segments[-1])
        if self._lock_fd >= 0 and self._fd < 0:
            self._open_for_append(self._segment, new=not segments)

    def append(self, kind: int, key: bytes, payload: bytes) -> Entry:
        """Returns once the record is whole on disk (with fsync). Raises StoreError; nothing half-written remains."""
        if self._fd < 0:
            raise StoreError(errno.EBADF, f"{self.folder}: the log is closed, broken, or open for reading only")
        if self._offset >= self._segment_bytes:
            self._next_segment()
        record = encode(kind, key, payload)
        entry = Entry(kind, key, self._segment, self._offset, len(payload), zlib.crc32(payload))
        try:
            _write_all(self._fd, record)
            if self._fsync:
                os.fsync(self._fd)
        except OSError as error:
            self._undo(error)
            raise self._explain(error, len(record)) from error
        self._offset = entry.end
        return entry

    def read(self, entry: Entry) -> bytes:
        """The payload, checked. Raises CorruptStoreError."""
        with open(self._path(entry.segment), "rb", buffering=0) as stream:
            payload = os.pread(stream.fileno(), entry.payload_bytes, entry.payload_offset)
        if len(payload) != entry.payload_bytes or zlib.crc32(payload) != entry.crc32:
            raise self._corrupt(entry.segment, entry.offset, "the payload does not match its checksum")
        return payload

    def verify(self) -> int:
        """Checks every byte of the log; returns the number of records. Raises CorruptStoreError."""
        segments = self._segments()
        return sum(
            1
            for segment in segments
            for _ in self._records(segment, 0, is_last=segment == segments[-1], check_payloads=True)
        )

    def close(self) -> None:
        """Safe to call twice."""
        for fd in (self._fd, self._lock_fd):
            if fd >= 0:
                os.close(fd)
        self._fd, self._lock_fd = -1, -1

    def _scan_segment(self, segment: int, *, is_last: bool) -> Iterator[Entry]:
        if self._offset == 0 and self._path(segment).stat().st_size >= len(SEGMENT_HEADER):
            self._offset = len(SEGMENT_HEADER)
        for entry in self._records(segment, self._offset, is_last=is_last, check_payloads=is_last):
            self._offset = entry.end
            yield entry

    def _records(self, segment: int, start: int, *, is_last: bool, check_payloads: bool) -> Iterator[Entry]:
        """The records of one segment from `start`; ends at a torn tail if it is the last segment, else raises."""
        path = self._path(segment)
        size = path.stat().st_size
        if size < len(SEGMENT_HEADER):
            if is_last:
                return  # its writer ended while it began the segment
            raise self._corrupt(segment, size, "it is cut off before its first record, and later segments are there")
        with open(path, "rb") as stream, mmap.mmap(stream.fileno(), size, access=mmap.ACCESS_READ) as view:
            if view[: len(SEGMENT_HEADER)] != SEGMENT_HEADER:
                raise self._corrupt(segment, 0, "it does not begin like a log of this version")
            offset = max(start, len(SEGMENT_HEADER))
            while offset < size:
                entry = parse(view, segment, offset, check_payload=check_payloads)
                if entry is None:
                    if not is_last or record_follows(view, segment, offset):
                        raise self._corrupt(
                            segment,
                            offset,
                            "the record does not match its checksum, and is not the "
                            "last one, so it was not just cut short",
                        )
                    return
                yield entry
                offset = entry.end

    def _open_for_append(self, segment: int, *, new: bool) -> None:
        path = self._path(segment)
        self._fd = os.open(path, os.O_RDWR | os.O_APPEND | (os.O_CREAT | os.O_EXCL if new else 0), 0o644)
        torn = os.fstat(self._fd).st_size - self._offset
        if torn > 0:
            logger.warning("%s: cut off %d bytes that were being written when the last writer ended", path, torn)
            os.ftruncate(self._fd, self._offset)
        if self._offset == 0:
            try:
                _write_all(self._fd, SEGMENT_HEADER)
                os.fsync(self._fd)
                _fsync_folder(self.folder)
            except OSError as error:
                self._undo(error)
                raise self._explain(error, len(SEGMENT_HEADER)) from error
            self._offset = len(SEGMENT_HEADER)

    def _next_segment(self) -> None:
        os.fsync(self._fd)  # even without fsync: of earlier segments, every byte is taken to be there
        os.close(self._fd)
        self._fd = -1
        self._segment, self._offset = self._segment + 1, 0
        self._open_for_append(self._segment, new=True)

    def _undo(self, cause: OSError) -> None:
        """Takes back a record that could not be written. If that fails too, nothing more may be appended."""
        try:
            os.ftruncate(self._fd, self._offset)
            if cause.errno in _FULL:
                return  # there is room again once something is deleted
        except OSError:
            logger.exception("%s: a half-written record could not be cut off; reopening the store will", self.folder)
        # After a failed fsync the kernel may have dropped what it could not write: only reading it back would tell.
        os.close(self._fd)
        self._fd = -1

    def _explain(self, error: OSError, num_bytes: int) -> StoreError:
        if error.errno in _FULL:
            return StoreError(
                error.errno,
                f"{self._path(self._segment)}: no room for a record of {num_bytes:,} bytes "
                f"({error.strerror}); nothing of it was kept. Free some space, then resume",
            )
        return StoreError(error.errno, f"{self._path(self._segment)}: {error.strerror}; the record was not kept")

    def _corrupt(self, segment: int, offset: int, what: str) -> CorruptStoreError:
        return CorruptStoreError(
            errno.EIO,
            f"{self._path(segment)} is damaged at byte {offset}: {what}. Restore the "
            f"file from a copy; the segments before it are still readable",
        )

    def _path(self, segment: int) -> Path:
        return self.folder / f"log-{segment:06d}.bin"

    def _segments(self) -> list[int]:
        found = sorted(int(path.stem[len("log-") :]) for path in self.folder.glob("log-*.bin"))
        for expected, segment in enumerate(found):
            if segment != expected:
                raise CorruptStoreError(
                    errno.ENOENT,
                    f"{self._path(expected)} is missing, and later segments are there: restore it from a copy",
                )
        return found


def _write_all(fd: int, data: bytes) -> None:
    view = memoryview(data)
    while view:
        view = view[os.write(fd, view) :]


def _lock(path: Path) -> int:
    fd = os.open(path, os.O_RDWR | os.O_CREAT, 0o644)
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError as error:
        owner = os.pread(fd, 32, 0).decode(errors="replace").strip() or "unknown"
        os.close(fd)
        raise StoreError(
            errno.EBUSY,
            f"{path.parent} is being written by process {owner}: end that run first, or use another run name",
        ) from error
    os.ftruncate(fd, 0)
    os.pwrite(fd, f"{os.getpid()}\n".encode(), 0)
    return fd


def _fsync_folder(folder: Path) -> None:
    fd = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)
