"""A content-addressed store on disk that many processes share and that survives kill -9 at any point.

locks/XX          flock, released by the kernel with its owner; 256 files, never deleted
objects/XX/KEY    one entry a file: a JSON line, then the payload; appears by rename, whole or not at all
build/            private folders of builds in progress; left-overs are swept after an hour
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import json
import os
import shutil
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

_SWEEP_AFTER_S = 3600.0


class ContentCache:
    """Entries of (JSON record, bytes) by hexadecimal key; above `max_bytes` the least recently used go."""

    def __init__(self, root: Path, *, max_bytes: int) -> None:
        self.root = root.expanduser().resolve()
        self._max_bytes = max_bytes
        self._written_bytes = max_bytes  # the first write of a process also tidies up
        for name in ("locks", "objects", "build"):
            (self.root / name).mkdir(parents=True, exist_ok=True)

    def load(self, key: str) -> tuple[dict[str, Any], bytes] | None:
        """The entry, or None. A damaged entry is removed and counts as absent."""
        path = self._entry(key)
        try:
            content = path.read_bytes()
            os.utime(path)
        except FileNotFoundError:
            return None
        header, _, payload = content.partition(b"\n")
        try:
            record = json.loads(header)
            intact = record["key"] == key and record["payload_sha256"] == hashlib.sha256(payload).hexdigest()
        except (ValueError, TypeError, KeyError):
            intact = False
        if not intact:
            path.unlink(missing_ok=True)
            return None
        return record["record"], payload

    def store(self, key: str, record: dict[str, Any], payload: bytes) -> None:
        """Writes the entry beside its place and renames it in. Raises OSError, for example on a full disk."""
        path = self._entry(key)
        path.parent.mkdir(exist_ok=True)
        header = {"key": key, "payload_sha256": hashlib.sha256(payload).hexdigest(), "record": record}
        content = json.dumps(header, separators=(",", ":")).encode() + b"\n" + payload
        descriptor, temporary = tempfile.mkstemp(dir=self.root / "build", prefix="entry-")
        try:
            with open(descriptor, "wb") as stream:
                stream.write(content)
            os.replace(temporary, path)
        except BaseException:
            with contextlib.suppress(FileNotFoundError):
                os.unlink(temporary)
            raise
        self._written_bytes += len(content)
        if self._written_bytes >= self._max_bytes // 16:
            self._written_bytes = 0
            self._tidy()

    @contextlib.contextmanager
    def lock(self, name: str, *, shared: bool = False, wait: bool = True) -> Iterator[None]:
        """Holds the lock `name` against other threads and processes; without `wait` BlockingIOError says it is taken.

        Nested use waits in one order only: an entry's lock, then a folder's.
        """
        with open(self.root / "locks" / name, "a+b") as stream:
            fcntl.flock(stream, (fcntl.LOCK_SH if shared else fcntl.LOCK_EX) | (0 if wait else fcntl.LOCK_NB))
            yield

    def entry_lock(self, key: str) -> contextlib.AbstractContextManager[None]:
        """One builder of `key` at a time; 256 locks serve all keys."""
        return self.lock(key[:2])

    @contextlib.contextmanager
    def build_folder(self) -> Iterator[Path]:
        """A private empty folder on the cache's own file system, removed afterwards."""
        folder = Path(tempfile.mkdtemp(dir=self.root / "build"))
        try:
            yield folder
        finally:
            shutil.rmtree(folder, ignore_errors=True)

    def _entry(self, key: str) -> Path:
        return self.root / "objects" / key[:2] / key

    def _tidy(self) -> None:
        """Drops the least recently used entries down to 7/8 of the bound and builds that nobody finished."""
        entries = []
        for path in (self.root / "objects").glob("*/*"):
            with contextlib.suppress(FileNotFoundError):  # another process tidies too
                status = path.stat()
                entries.append((status.st_mtime_ns, status.st_size, path))
        total = sum(size for _, size, _ in entries)
        if total > self._max_bytes:
            for _, size, path in sorted(entries):
                path.unlink(missing_ok=True)
                total -= size
                if total <= self._max_bytes * 7 // 8:
                    break
        for path in (self.root / "build").iterdir():
            with contextlib.suppress(FileNotFoundError):
                if time.time() - path.stat().st_mtime > _SWEEP_AFTER_S:
                    shutil.rmtree(path, ignore_errors=True) if path.is_dir() else path.unlink()
