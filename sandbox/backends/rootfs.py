"""The root of a sandbox made of this host: links and accounts of its own, programs mounted read-only; no registry."""

from __future__ import annotations

import io
import os
import sys
import tarfile
from pathlib import Path

TOP_LEVEL = ("bin", "sbin", "lib", "lib32", "lib64", "libx32")
ETC_FROM_HOST = ("/etc/alternatives", "/etc/ld.so.cache")  # c++ -> g++ and friends; where libraries are
AGENT_UID = 64_001
"""Of the agent, where the host's side runs as root; nobody else's on any distribution we know."""


def image_tar() -> bytes:
    """A few kilobytes: what `docker import` makes the image from. The same host gives the same bytes."""
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w", format=tarfile.PAX_FORMAT) as tar:
        for name, mode in (("usr", 0o755), ("etc", 0o755), ("sandbox", 0o755), ("tmp", 0o1777)):
            _add(tar, name, tarfile.DIRTYPE, mode)  # a tmpfs takes over the mode of the directory it covers
        for name, target in top_links().items():
            _add(tar, name, tarfile.SYMTYPE, 0o777, link=target)
        for name, text in accounts().items():
            _add(tar, name, tarfile.REGTYPE, 0o644, text=text)
    return buffer.getvalue()


def top_links() -> dict[str, str]:
    """Names in the root that are links here (`bin` to `usr/bin`), and where they lead."""
    paths = {name: Path("/", name) for name in TOP_LEVEL}
    return {name: os.readlink(path) for name, path in paths.items() if path.is_symlink()}


def accounts() -> dict[str, str]:
    """Files of /etc that say who there is: root, the agent, and the user of the host's side."""
    users = [("root", 0, "/root"), ("agent", AGENT_UID, "/tmp")]
    if os.getuid() not in (0, AGENT_UID):
        users.append(("host", os.getuid(), "/tmp"))
    return {
        "etc/passwd": "".join(f"{name}:x:{uid}:{uid}::{home}:/bin/bash\n" for name, uid, home in users),
        "etc/group": "".join(f"{name}:x:{uid}:\n" for name, uid, _ in users),
        "etc/nsswitch.conf": "passwd: files\ngroup: files\nhosts: files\n",
    }


def host_paths() -> list[str]:
    """What is mounted read-only at its own path: system directories and this Python's environment."""
    top = [Path("/", name) for name in TOP_LEVEL]
    paths = ["/usr", *(str(path) for path in top if path.is_dir() and not path.is_symlink())]
    paths += [path for path in ETC_FROM_HOST if Path(path).exists()]
    interpreter = Path(os.path.realpath(sys.executable))
    for prefix in (sys.base_prefix, os.path.realpath(sys.base_prefix), str(interpreter.parent.parent), sys.prefix):
        if not any(Path(prefix).is_relative_to(path) for path in paths):
            paths.append(prefix)
    return paths


def _add(tar: tarfile.TarFile, name: str, kind: bytes, mode: int, *, text: str = "", link: str = "") -> None:
    entry = tarfile.TarInfo(name)
    entry.type, entry.mode, entry.linkname, entry.size = kind, mode, link, len(text)
    tar.addfile(entry, io.BytesIO(text.encode()))
