"""Slots: the directories that are mounted in containers before anybody knows what they will hold.

    ROOT/OWNER.NUMBER.RANDOM/box        mounted at /sandbox; `work` in it is the workdir, moved in and out
                            /control    mounted read-only; the socket on which the container calls back

OWNER names the process that made the slot, so that what a killed one left behind can be found and removed.
"""

from __future__ import annotations

import contextlib
import errno
import functools
import hashlib
import itertools
import logging
import os
import secrets
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path

from sandbox.backends.files import hand_over, remove_tree
from sandbox.types import SandboxUnavailableError

logger = logging.getLogger(__name__)


class Slot:
    """One slot on disk, and the workdir while it is in there."""

    def __init__(self, root: Path, owner: tuple[int, int] | None):
        """`owner` is the (uid, gid) of the agent, None for the current user. Raises SandboxUnavailableError."""
        self.path = root / f"{process_name()}.{next(_numbers)}.{secrets.token_hex(4)}"
        self.owner = owner
        self.protected: frozenset[str] = frozenset()
        """Top-level entries of the workdir that the agent may only read."""
        try:
            with disk_trouble(self.path):
                self.box.mkdir(parents=True)
                self.control.mkdir()
        except SandboxUnavailableError:
            self.remove()
            raise

    @property
    def box(self) -> Path:
        return self.path / "box"

    @property
    def control(self) -> Path:
        return self.path / "control"

    @property
    def work(self) -> Path:
        return self.box / "work"

    def remove(self) -> None:
        remove_tree(self.path)

    def move_in(self, workdir: Path, writable: frozenset[str]) -> None:
        """Leaves a link at `workdir`. Raises OSError."""
        if workdir.is_symlink() or not workdir.is_dir():
            raise NotADirectoryError(f"{workdir} is no directory (a link is not enough)")
        self.protected = hand_over(workdir, self.owner, writable)
        _move(workdir, self.work)
        try:
            workdir.symlink_to(self.work)
        except OSError:
            _move(self.work, workdir)  # nothing of the caller's is lost
            raise

    def move_out(self, workdir: Path, identity: int) -> None:
        """Puts the directory back in place of the link; whoever has removed the link wants no files back.

        Raises SandboxUnavailableError where that fails; the files are then still in the slot.
        """
        if not workdir.is_symlink() or Path(os.readlink(workdir)) != self.work:
            return
        workdir.unlink()
        with disk_trouble(workdir):
            self._put_back(workdir, identity)

    def _put_back(self, workdir: Path, identity: int) -> None:
        if self.work.is_symlink() or not self.work.is_dir() or self.work.stat().st_ino != identity:
            logger.warning("a sandbox exchanged its own workdir for something else; %s comes back empty", workdir)
            workdir.mkdir()
            return
        _move(self.work, workdir)


def slots_root() -> Path:
    """Where this user's slots are, on the file system of temporary files. Raises SandboxUnavailableError."""
    root = Path(tempfile.gettempdir()) / f"jaxagent-sandboxes-{os.getuid()}"
    with disk_trouble(root):
        root.mkdir(mode=0o700, exist_ok=True)
        if root.is_symlink() or root.stat().st_uid != os.getuid():
            raise SandboxUnavailableError(f"{root} belongs to somebody else; remove it or set TMPDIR")
    return root


def reap_slots(root: Path) -> None:
    """Removes slots of processes that are gone."""
    for path in root.iterdir():
        if is_gone(path.name.split(".")[0]):
            remove_tree(path)


def process_name() -> str:
    """This process, and the machine and process namespace in which its number means something."""
    return f"{_namespace()}-{os.getpid()}-{_start_ticks(os.getpid())}"


def is_gone(owner: str) -> bool:
    """Whether the process of that process_name() was of this machine and has ended."""
    namespace, _, process = owner.rpartition("-")[0].rpartition("-")
    start = owner.rpartition("-")[2]
    return namespace == _namespace() and process.isdigit() and _start_ticks(int(process)) != start


@functools.lru_cache(maxsize=1)
def _namespace() -> str:
    boot = Path("/proc/sys/kernel/random/boot_id").read_text()
    return hashlib.sha256(f"{boot}{os.readlink('/proc/self/ns/pid')}".encode()).hexdigest()[:12]


def _start_ticks(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[19]
    except OSError:
        return ""


@contextlib.contextmanager
def disk_trouble(path: Path) -> Iterator[None]:
    """Turns an OSError into SandboxUnavailableError that says what to do."""
    try:
        yield
    except OSError as error:
        text = f"no sandbox can be kept at {path}: {error}. Free some space, or set TMPDIR to a disk that has it."
        raise SandboxUnavailableError(text) from error


def _move(source: Path, target: Path) -> None:
    try:
        os.rename(source, target)
    except OSError as error:
        if error.errno != errno.EXDEV:
            raise
        # another file system; cp copes with every kind of file and any depth
        command = ["cp", "-a", "-T", "--", str(source), str(target)]
        copied = subprocess.run(command, capture_output=True, text=True, check=False)
        if copied.returncode != 0:
            raise OSError(f"copying it to {target} failed: {copied.stderr.strip()}") from error
        remove_tree(source)


_numbers = itertools.count()
