"""The `docker` backend: one container an agent, nothing shared with the host but one directory.

A bind mount cannot be added to a running container, yet containers have to be warm before their workdir is known. So
every container is started with a slot of its own: an empty directory, mounted at /sandbox. Opening a sandbox moves
the workdir into the slot, where the container sees it at once as /sandbox/work; closing it removes the container and
moves the directory back. No container serves twice.

Process 1 of a container is shell_server.py, connected to us by a socket in a second, read-only mount that is unlinked
before any command runs. It ends with that connection, so containers of a killed driver end too; what they leave is
labelled with its owner and removed by the next one that starts here.
"""

from __future__ import annotations

import asyncio
import atexit
import contextlib
import hashlib
import logging
import os
import socket
import sys
import threading
import time
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import docker
import docker.errors
import docker.types
import requests.exceptions

from sandbox import unix_sockets
from sandbox.backends.files import Workdir
from sandbox.backends.rootfs import AGENT_UID, host_paths, image_tar
from sandbox.backends.shell import SERVER_SOURCE, WRITABLE, ShellClient, ShellSandbox, shell_environment
from sandbox.backends.slots import Slot, disk_trouble, is_gone, process_name, reap_slots, slots_root
from sandbox.config import SandboxConfig
from sandbox.types import SandboxUnavailableError

logger = logging.getLogger(__name__)

HOST_ROOTFS = "host-rootfs"
LABEL = "jaxagent.sandbox.owner"
HOME = "/sandbox/work"
_SERVER, _CONTROL = "/sandbox-server.py", "/sandbox-control"
_START_TIMEOUT_S = 60.0
_ENGINE_ERRORS = (docker.errors.DockerException, requests.exceptions.RequestException)

HOW_TO_START = (
    "Start it (`sudo systemctl start docker`, or `scripts/start_docker.sh` where nothing starts services), check that "
    "this user may use its socket (group `docker`), or set sandbox.backend=bubblewrap, which isolates without an "
    "engine. sandbox.backend=process needs neither, but runs the policy's commands as the current user without any "
    "isolation: for trusted code only."
)


async def open_docker_sandbox(config: SandboxConfig, workdir: Path) -> ShellSandbox:
    """Raises SandboxUnavailableError, with what to do, where the engine, the image or the workdir fails."""
    pool = await asyncio.to_thread(pool_of, config)
    box = await asyncio.to_thread(pool.take)
    try:
        workdir = Path(os.path.abspath(workdir))
        await asyncio.to_thread(box.slot.move_in, workdir, WRITABLE)
        files = Workdir(box.slot.work, owner=pool.owner, protected=box.slot.protected)
    except OSError as error:
        await asyncio.to_thread(pool.discard, box)
        raise SandboxUnavailableError(f"the workdir {workdir} cannot be given to a container: {error}") from error
    identity = os.fstat(files.fd).st_ino

    async def revive() -> tuple[ShellClient, str]:
        note = await asyncio.to_thread(pool.restart, box)
        return await ShellClient.over(box.connection, config.max_output_bytes), note

    async def release() -> None:
        await asyncio.to_thread(pool.discard, box, (workdir, identity))

    return ShellSandbox(
        config=config,
        client=await ShellClient.over(box.connection, config.max_output_bytes),
        workdir=box.slot.work,
        home=HOME,
        files=files,
        revive=revive,
        release=release,
        process_ids=lambda: [box.pid],
    )


@dataclass
class Box:
    """A started container with its slot."""

    slot: Slot
    container_id: str
    connection: socket.socket
    pid: int
    """Of the container's process 1, as this host numbers it."""

    def alive(self) -> bool:
        try:
            return bool(self.connection.recv(1, socket.MSG_PEEK | socket.MSG_DONTWAIT))
        except BlockingIOError:
            return True
        except OSError:
            return False


class DockerPool:
    """Started, clean containers of one config. Its methods block and may be called from any thread."""

    def __init__(self, config: SandboxConfig):
        self._config = config
        self.owner = (AGENT_UID, AGENT_UID) if os.getuid() == 0 else None
        with _engine_trouble("does not answer"):
            self._docker = docker.from_env(timeout=60)
            _refuse_mapped_users(self._docker.info())
        self._root = slots_root()
        with _engine_trouble("fails"):
            self._reap()
            self._image = self._find_image()
        self._ready: deque[Box] = deque()
        self._lock = threading.Lock()
        self._refilling = False
        self._closed = False

    def take(self) -> Box:
        """A clean container, warm where one is ready, and starts its replacement in the background."""
        while True:
            with self._lock:
                box = self._ready.popleft() if self._ready else None
            if box is None or box.alive():
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
        box.connection.close()
        note = "its main process ended"
        with _engine_trouble("fails"):
            try:
                old = self._docker.containers.get(box.container_id)
                with contextlib.suppress(requests.exceptions.RequestException):  # it hangs: then it is removed as it is
                    old.wait(timeout=5)
                old.reload()
                if old.attrs["State"]["OOMKilled"]:
                    note = f"out of memory: the limit is {self._config.memory_mb} MB, files in /tmp included"
                self._remove(box.container_id)
            except docker.errors.NotFound:
                note = "its container was removed"
        fresh = self._start(box.slot)
        box.container_id, box.connection, box.pid = fresh.container_id, fresh.connection, fresh.pid
        return note

    def discard(self, box: Box, give_back: tuple[Path, int] | None = None) -> None:
        """Removes the container, then moves the workdir (path, inode) back if asked, then removes the slot."""
        box.connection.close()
        try:
            with _engine_trouble("fails"):
                self._remove(box.container_id)
        except SandboxUnavailableError as error:  # the next start here reaps it; the files can still be saved
            logger.warning("container %s could not be removed: %s", box.container_id[:12], error)
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
        slot = Slot(self._root, self.owner)
        try:
            return self._start(slot)
        except BaseException:
            slot.remove()
            raise

    def _start(self, slot: Slot) -> Box:
        with disk_trouble(slot.control):
            listener = unix_sockets.listen(slot.control, "socket")
        with contextlib.closing(listener), _engine_trouble("fails"):
            container = self._docker.containers.create(self._image, **self._options(slot))
            try:
                container.start()
                connection = self._accept(listener, container)
                (slot.control / "socket").unlink()
                container.reload()
            except BaseException:
                self._remove(container.attrs["Id"])
                raise
        name, pid = container.attrs["Id"], container.attrs["State"]["Pid"]
        return Box(slot=slot, container_id=name, connection=connection, pid=pid)

    def _accept(self, listener: socket.socket, container) -> socket.socket:
        deadline = time.monotonic() + _START_TIMEOUT_S
        listener.settimeout(1.0)
        while True:
            try:
                return listener.accept()[0]
            except TimeoutError:
                container.reload()
                running = container.attrs["State"]["Running"]
                if running and time.monotonic() < deadline:
                    continue
                why = f"did not call back within {_START_TIMEOUT_S:g} s" if running else "ended at once"
                log = container.logs(tail=5).decode("utf-8", "replace").strip()
                raise SandboxUnavailableError(
                    f"a container of image {self._config.image!r} {why}: {log or 'no output'}. The image needs bash "
                    "and python3; docker/Dockerfile builds one that fits."
                ) from None

    def _remove(self, container_id: str) -> None:
        try:
            self._docker.api.remove_container(container_id, force=True, v=True)
        except docker.errors.NotFound:
            pass
        except docker.errors.APIError as error:
            if error.status_code != 409:  # another process is removing it in this moment
                raise

    def _options(self, slot: Slot) -> dict[str, Any]:
        config = self._config
        uid, gid = self.owner or (os.getuid(), os.getgid())
        host = [docker.types.Mount(path, path, type="bind", read_only=True) for path in self._host_paths()]
        environment = shell_environment("/tmp")
        python = os.path.realpath(sys.executable)
        if config.image != HOST_ROOTFS:
            del environment["PATH"]  # the image's own
            python = "python3"
        disk = config.disk_mb << 20
        return {
            "entrypoint": [python, "-I", "-S", "-B", _SERVER],
            "command": [f"{_CONTROL}/socket", HOME],
            "user": f"{uid}:{gid}",
            "network_mode": "none",
            "read_only": True,
            "cap_drop": ["ALL"],
            "security_opt": ["no-new-privileges"],
            "ipc_mode": "private",
            "pids_limit": config.pids,
            "mem_limit": config.memory_mb << 20,
            "memswap_limit": config.memory_mb << 20,
            "shm_size": min(64 << 20, disk),
            "tmpfs": {"/tmp": f"rw,exec,nosuid,nodev,size={disk},mode=1777"},
            "ulimits": [
                docker.types.Ulimit(name="fsize", soft=disk, hard=disk),
                docker.types.Ulimit(name="core", soft=0, hard=0),
                docker.types.Ulimit(name="nofile", soft=1024, hard=1024),
            ],
            "environment": environment,
            "working_dir": "/",
            "mounts": [
                *host,
                docker.types.Mount(_SERVER, str(SERVER_SOURCE), type="bind", read_only=True),
                docker.types.Mount(_CONTROL, str(slot.control), type="bind", read_only=True),
                docker.types.Mount("/sandbox", str(slot.box), type="bind"),
            ],
            "labels": {LABEL: process_name()},
            "log_config": docker.types.LogConfig(type="json-file", config={"max-size": "100k", "max-file": "1"}),
        }

    def _host_paths(self) -> list[str]:
        return host_paths() if self._config.image == HOST_ROOTFS else []

    def _find_image(self) -> str:
        if self._config.image != HOST_ROOTFS:
            try:
                self._docker.images.get(self._config.image)
            except docker.errors.ImageNotFound:
                raise SandboxUnavailableError(
                    f"sandbox.image: the engine has no image {self._config.image!r}. Build it "
                    f"(`docker build -t {self._config.image} -f docker/Dockerfile .`), pull it, or set "
                    f"sandbox.image={HOST_ROOTFS}, which needs no registry."
                ) from None
            return self._config.image
        tar = image_tar()
        repository, tag = "jaxagent/host-rootfs", hashlib.sha256(tar).hexdigest()[:12]
        try:
            self._docker.images.get(f"{repository}:{tag}")
        except docker.errors.ImageNotFound:
            self._docker.api.import_image_from_data(tar, repository=repository, tag=tag)
        return f"{repository}:{tag}"

    def _reap(self) -> None:
        """Removes containers and slots whose owner, a process of this host, is gone."""
        for container in self._docker.containers.list(all=True, filters={"label": LABEL}, ignore_removed=True):
            if is_gone(container.labels[LABEL]):
                self._remove(container.attrs["Id"])
        reap_slots(self._root)


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


@contextlib.contextmanager
def _engine_trouble(what: str) -> Iterator[None]:
    try:
        yield
    except _ENGINE_ERRORS as error:
        where = os.environ.get("DOCKER_HOST", "unix:///var/run/docker.sock")
        raise SandboxUnavailableError(f"Docker Engine at {where} {what}: {error}. {HOW_TO_START}") from error


def _refuse_mapped_users(info: dict[str, Any]) -> None:
    """Inside such an engine's containers nobody is the owner of a workdir, so an agent could write nothing."""
    mapped = [option for option in info.get("SecurityOptions") or [] if option in ("name=rootless", "name=userns")]
    if mapped:
        raise SandboxUnavailableError(
            f"Docker Engine runs with {mapped[0].removeprefix('name=')}, so users in containers are not those of this "
            "machine, and a workdir cannot be shared with them. Use an engine without it, or sandbox.backend=process "
            "for trusted code."
        )
