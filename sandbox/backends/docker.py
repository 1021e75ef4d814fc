"""The `docker` backend: one container an agent, nothing shared with the host but one directory.

A bind mount cannot be added to a running container, yet containers have to be warm before their workdir is known. So
every container is started with a slot of its own: an empty directory, mounted at /sandbox. Opening a sandbox moves
the workdir into the slot, where the container sees it at once as /sandbox/work; closing it removes the container and
moves the directory back. No container serves twice.
"""

from __future__ import annotations

import asyncio
import atexit
import logging
import os
import threading
from collections import deque
from dataclasses import dataclass
from pathlib import Path

from sandbox.backends.docker_engine import Container, DockerEngine
from sandbox.backends.files import Workdir
from sandbox.backends.shell import HOME, WRITABLE, ShellClient, ShellSandbox
from sandbox.backends.slots import Slot, reap_slots, slots_root
from sandbox.config import SandboxConfig
from sandbox.types import SandboxUnavailableError

logger = logging.getLogger(__name__)


async def open_docker_sandbox(config: SandboxConfig, workdir: Path) -> ShellSandbox:
    """Raises SandboxUnavailableError, with what to do, where the engine, the image or the workdir fails."""
    pool = await asyncio.to_thread(pool_of, config)
    box = await asyncio.to_thread(pool.take)
    try:
        workdir = Path(os.path.abspath(workdir))
        await asyncio.to_thread(box.slot.move_in, workdir, WRITABLE)
        files = Workdir(box.slot.work, owner=pool.engine.owner, protected=box.slot.protected)
    except OSError as error:
        await asyncio.to_thread(pool.discard, box)
        raise SandboxUnavailableError(f"the workdir {workdir} cannot be given to a container: {error}") from error
    identity = os.fstat(files.fd).st_ino

    async def revive() -> tuple[ShellClient, str]:
        note = await asyncio.to_thread(pool.restart, box)
        return await ShellClient.over(box.container.connection, config.max_output_bytes), note

    async def release() -> None:
        await asyncio.to_thread(pool.discard, box, (workdir, identity))

    return ShellSandbox(
        config=config,
        client=await ShellClient.over(box.container.connection, config.max_output_bytes),
        workdir=box.slot.work,
        home=HOME,
        files=files,
        revive=revive,
        release=release,
        process_ids=lambda: [box.container.pid],
    )


@dataclass
class Box:
    """A slot with the container that runs on it."""

    slot: Slot
    container: Container


class DockerPool:
    """Started, clean containers of one config. Its methods block and may be called from any thread."""

    def __init__(self, config: SandboxConfig):
        self._config = config
        self.engine = DockerEngine(config)
        self._root = slots_root()
        self.engine.reap()
        reap_slots(self._root)
        self.engine.find_image()
        self._ready: deque[Box] = deque()
        self._lock = threading.Lock()
        self._refilling = False
        self._closed = False

    def take(self) -> Box:
        """A clean container, warm where one is ready, and starts its replacement in the background."""
        while True:
            with self._lock:
                box = self._ready.popleft() if self._ready else None
            if box is None or box.container.alive():
                break
            self.discard(box)
        try:
            return box or self._start_new()
        finally:
            self._refill_in_background()

    def fill(self) -> None:
        """Starts containers until the configured number is ready."""
        while True:
            with self._lock:
                if self._closed or len(self._ready) >= self._config.warm_containers:
                    return
            box = self._start_new()
            with self._lock:
                if not self._closed:
                    self._ready.append(box)
                    continue
            self.discard(box)

    def restart(self, box: Box) -> str:
        """A new container on the same slot; returns why the old one ended, in words for the agent."""
        box.container.connection.close()
        note = self.engine.remove_ended(box.container)
        box.container = self.engine.start(box.slot)
        return note

    def discard(self, box: Box, give_back: tuple[Path, int] | None = None) -> None:
        """Removes the container, then moves the workdir (path, inode) back if asked, then removes the slot."""
        box.container.connection.close()
        try:
            self.engine.remove(box.container)
        except SandboxUnavailableError as error:  # the next start here reaps it; the files can still be saved
            logger.warning("container %s could not be removed: %s", box.container.id[:12], error)
        if give_back:
            box.slot.move_out(*give_back)
        box.slot.remove()

    def close(self) -> None:
        with self._lock:
            self._closed = True
            boxes, self._ready = list(self._ready), deque()
        for box in boxes:
            self.discard(box)

    def _refill_in_background(self) -> None:
        with self._lock:
            if self._refilling or self._closed or len(self._ready) >= self._config.warm_containers:
                return
            self._refilling = True

        def refill() -> None:
            try:
                self.fill()
            except SandboxUnavailableError as error:  # take() meets the same trouble and raises it
                logger.warning("no warm container could be started: %s", error)
            finally:
                with self._lock:
                    self._refilling = False

        threading.Thread(target=refill, name="warm-containers", daemon=True).start()

    def _start_new(self) -> Box:
        slot = Slot(self._root, self.engine.owner)
        try:
            return Box(slot, self.engine.start(slot))
        except BaseException:
            slot.remove()
            raise


def pool_of(config: SandboxConfig) -> DockerPool:
    """The pool of this process for `config`; the first call connects to the engine and reaps leftovers."""
    with _pools_lock:
        if config not in _pools:
            _pools[config] = DockerPool(config)
        return _pools[config]


def close_pools() -> None:
    """Removes the warm containers of this process."""
    with _pools_lock:
        pools = list(_pools.values())
        _pools.clear()
    for pool in pools:
        pool.close()


_pools: dict[SandboxConfig, DockerPool] = {}
_pools_lock = threading.Lock()
atexit.register(close_pools)
