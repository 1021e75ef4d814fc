"""Unix sockets at paths of any length (the kernel's own limit is 107 bytes)."""

from __future__ import annotations

import contextlib
import os
import socket
from pathlib import Path


def listen(directory: Path, name: str, *, backlog: int = 16) -> socket.socket:
    """A listening socket `directory/name` that every user may connect to; replaces a file of that name.

    The directory is held open and never followed as a link, so nobody who may write beside it can redirect us.
    """
    fd = os.open(directory, os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    listener = socket.socket(socket.AF_UNIX)
    try:
        with contextlib.suppress(FileNotFoundError):
            os.unlink(name, dir_fd=fd)
        listener.bind(f"/proc/self/fd/{fd}/{name}")
        os.chmod(name, 0o666, dir_fd=fd)
        listener.listen(backlog)
    except OSError:
        listener.close()
        raise
    finally:
        os.close(fd)
    return listener
