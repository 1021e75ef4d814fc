"""An agent's files, read and written from the host without ever leaving the workdir.

The agent may swap a directory for a link while we look. So a path is walked one component at a time from an open
directory, no component is followed by the kernel, and links are resolved here. What the agent did wrong is an OSError
(PermissionError, FileNotFoundError, ...); a full disk of the host is ours.
"""

from __future__ import annotations

import contextlib
import errno
import os
import stat
import subprocess
from pathlib import Path

from sandbox.types import SandboxUnavailableError

MAX_READ_BYTES = 4 << 20
MAX_ENTRIES = 20_000
MAX_DEPTH = 64
_MAX_LINKS = 40


class Workdir:
    """The root of an agent's files, held open so that it cannot be exchanged. Not thread-safe against close()."""

    def __init__(self, path: Path, *, owner: tuple[int, int] | None = None, protected: frozenset[str] = frozenset()):
        """`owner` is the (uid, gid) new files get, None for the current user; `protected` names top-level entries
        that write() refuses."""
        self._fd: int | None = os.open(path, os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
        self._owner = owner
        self._protected = protected

    @property
    def fd(self) -> int:
        if self._fd is None:
            raise SandboxUnavailableError("the sandbox is closed")
        return self._fd

    def close(self) -> None:
        if self._fd is not None:
            os.close(self._fd)
            self._fd = None

    def read(self, path: str) -> str:
        """Text of a regular file; bytes that are no UTF-8 become U+FFFD. Raises OSError, see the module."""
        with self._parent(path) as (parent, name):
            fd = os.open(name, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, dir_fd=parent)
            with open(fd, "rb") as file:
                _require_regular(fd, path)
                data = file.read(MAX_READ_BYTES + 1)
        if len(data) > MAX_READ_BYTES:
            raise OSError(errno.EFBIG, f"larger than {MAX_READ_BYTES >> 20} MiB, look at it in the shell", path)
        return data.decode("utf-8", "replace")

    def write(self, path: str, text: str) -> None:
        """Creates or replaces a regular file, and the directories it needs. Raises OSError, see the module."""
        with self._parent(path, create=True) as (parent, name):
            flags = os.O_WRONLY | os.O_CREAT | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
            try:
                fd = os.open(name, flags, 0o644, dir_fd=parent)
            except OSError as error:
                if error.errno == errno.ENXIO:  # a FIFO without reader
                    raise _no_regular_file(path) from None
                raise
            with open(fd, "wb") as file:
                _require_regular(fd, path)
                if self._owner:
                    os.fchown(fd, *self._owner)
                try:
                    file.truncate(0)
                    file.write(text.encode("utf-8", "surrogateescape"))
                    file.flush()
                except OSError as error:
                    if error.errno == errno.ENOSPC:
                        raise SandboxUnavailableError(f"the disk that holds the sandboxes is full: {error}") from error
                    raise

    @contextlib.contextmanager
    def _parent(self, path: str, *, create: bool = False):
        """Yields (fd of the directory, last component) with every link on the way resolved inside the workdir."""
        stack = [os.dup(self.fd)]  # the directories from the workdir down to where we are
        try:
            todo = _components(path)
            links = 0
            while True:
                if not todo:
                    raise IsADirectoryError(errno.EISDIR, "is a directory", path)
                name = todo.pop(0)
                if name == "..":
                    if len(stack) == 1:
                        raise PermissionError(errno.EACCES, "leaves the workdir", path)
                    os.close(stack.pop())
                    continue
                if create and len(stack) == 1 and name in self._protected:
                    raise PermissionError(errno.EACCES, "is read-only: it belongs to the skill or the task", path)
                target = _link_target(name, stack[-1])
                if target is not None:
                    links += 1
                    if links > _MAX_LINKS:
                        raise OSError(errno.ELOOP, "too many links", path)
                    if target.startswith("/"):
                        raise PermissionError(errno.EACCES, f"is a link that leaves the workdir (to {target})", path)
                    todo = _components(target) + todo
                elif not todo:
                    yield stack[-1], name
                    return
                else:
                    stack.append(self._enter(name, stack[-1], create))
        finally:
            for fd in stack:
                os.close(fd)

    def _enter(self, name: str, parent: int, create: bool) -> int:
        if create:
            with contextlib.suppress(FileExistsError):
                os.mkdir(name, 0o755, dir_fd=parent)
                if self._owner:
                    os.chown(name, *self._owner, dir_fd=parent, follow_symlinks=False)
        return os.open(name, os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=parent)


def hand_over(root: Path, owner: tuple[int, int] | None, writable: frozenset[str]) -> frozenset[str]:
    """Prepares a freshly laid out workdir for an agent; returns the names that stay read-only.

    Top-level entries named in `writable` go to the agent. The others stay ours: as root, where the agent is another
    user, its sticky parent keeps them from being removed or replaced; as an ordinary user the agent is the same user,
    and the missing write bits only stop accidents. Nothing that is judged is ever read from them.
    """
    protected = frozenset(entry.name for entry in os.scandir(root)) - writable
    for directory, _, files in os.walk(root):
        inside = Path(directory).relative_to(root).parts
        for name in files:
            path = Path(directory, name)
            mode = path.lstat().st_mode
            if stat.S_ISREG(mode) and (inside or (name,))[0] in protected:
                path.chmod(mode & 0o111 | 0o444)
            elif owner and stat.S_ISREG(mode):
                os.chown(path, *owner)
        if inside and inside[0] in protected:
            os.chmod(directory, 0o755)
        elif inside and owner:
            os.chown(directory, *owner)
    if owner:
        root.chmod(0o1777)
    return protected


def usage_bytes(root: Path) -> int | None:
    """Bytes on disk below `root`; None where there are too many files or levels to say (more than any task needs)."""
    total, entries, queue = 0, 0, [(str(root), 0)]
    while queue:
        directory, depth = queue.pop()
        try:
            with os.scandir(directory) as scan:
                for entry in scan:
                    entries += 1
                    if entries > MAX_ENTRIES or depth > MAX_DEPTH:
                        return None
                    status = entry.stat(follow_symlinks=False)
                    total += status.st_blocks * 512
                    if stat.S_ISDIR(status.st_mode):
                        queue.append((entry.path, depth + 1))
        except OSError:
            continue  # the agent's processes move things while we look; the next look sees them
    return total


def remove_tree(path: Path) -> None:
    """Deletes `path` whatever an agent built in it: rm copes with depths at which Python's recursion ends."""
    remove = ["rm", "-rf", "--one-file-system", "--", str(path)]
    if subprocess.run(remove, check=False, capture_output=True).returncode != 0:  # folders without rights, perhaps
        subprocess.run(["chmod", "-R", "u+rwX", "--", str(path)], check=False, capture_output=True)
        subprocess.run(remove, check=False, capture_output=True)


def _components(path: str) -> list[str]:
    if not path or "\0" in path:
        raise FileNotFoundError(errno.ENOENT, "is no file name", path)
    if path.startswith("/"):
        raise PermissionError(errno.EACCES, "leaves the workdir: give a path relative to it", path)
    return [part for part in path.split("/") if part not in ("", ".")]


def _link_target(name: str, parent: int) -> str | None:
    try:
        return os.readlink(name, dir_fd=parent)
    except OSError as error:
        if error.errno in (errno.EINVAL, errno.ENOENT):  # no link, or nothing there (yet)
            return None
        raise


def _require_regular(fd: int, path: str) -> None:
    mode = os.fstat(fd).st_mode
    if stat.S_ISDIR(mode):
        raise IsADirectoryError(errno.EISDIR, "is a directory", path)
    if not stat.S_ISREG(mode):
        raise _no_regular_file(path)


def _no_regular_file(path: str) -> PermissionError:
    return PermissionError(errno.EACCES, "is no regular file", path)
