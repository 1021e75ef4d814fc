"""Docker Engine as the `docker` backend uses it: one image, and a container on each slot that it is given.

Process 1 of a container is the shell server, connected to us by a socket in a second, read-only mount that is unlinked
before any command runs. It ends with that connection, so containers of a killed driver end too; what they leave is
labelled with its owner and removed by the next one that starts here.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import socket
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import docker
import docker.errors
import docker.types
import requests.exceptions

from sandbox import unix_sockets
from sandbox.backends import shell_server
from sandbox.backends.ending import why_it_ended
from sandbox.backends.rootfs import AGENT_UID, host_paths, image_tar
from sandbox.backends.shell import HOME, shell_environment
from sandbox.backends.slots import Slot, disk_trouble, is_gone, process_name
from sandbox.config import SandboxConfig
from sandbox.types import SandboxUnavailableError

HOST_ROOTFS = "host-rootfs"
LABEL = "jaxagent.sandbox.owner"
_CONTROL = "/sandbox-control"
_START_TIMEOUT_S = 60.0
_ENGINE_ERRORS = (docker.errors.DockerException, requests.exceptions.RequestException)

HOW_TO_START = (
    "Start it (`sudo systemctl start docker`, or `scripts/start_docker.sh` where nothing starts services), check that "
    "this user may use its socket (group `docker`), or set sandbox.backend=bubblewrap, which isolates without an "
    "engine. sandbox.backend=process needs neither, but runs the policy's commands as the current user without any "
    "isolation: for trusted code only."
)


@dataclass(frozen=True)
class Container:
    """One that runs."""

    id: str
    connection: socket.socket
    pid: int
    """Of its process 1, as this host numbers it."""

    def alive(self) -> bool:
        try:
            return bool(self.connection.recv(1, socket.MSG_PEEK | socket.MSG_DONTWAIT))
        except BlockingIOError:
            return True
        except OSError:
            return False


class DockerEngine:
    """For the containers of one config. Its methods block, and raise SandboxUnavailableError where the engine fails."""

    def __init__(self, config: SandboxConfig):
        self._config = config
        self.owner = (AGENT_UID, AGENT_UID) if os.getuid() == 0 else None
        """Of what is in a workdir: (uid, gid), None for the current user."""
        self._image = ""
        with _engine_trouble("does not answer"):
            self._docker = docker.from_env(timeout=60)
            refuse_mapped_users(self._docker.info())

    def reap(self) -> None:
        """Removes containers whose owner, a process of this host, is gone."""
        with _engine_trouble("fails"):
            for container in self._docker.containers.list(all=True, filters={"label": LABEL}, ignore_removed=True):
                if is_gone(container.labels[LABEL]):
                    self._remove(container.attrs["Id"])

    def find_image(self) -> None:
        """Before the first start; makes the image of this host's programs where the config names that."""
        with _engine_trouble("fails"):
            self._image = self._host_image() if self._config.image == HOST_ROOTFS else self._named_image()

    def start(self, slot: Slot) -> Container:
        """Returns once process 1 has called back; of a start that fails nothing stays."""
        with disk_trouble(slot.control):
            listener = unix_sockets.listen(slot.control, "socket")
        with contextlib.closing(listener), _engine_trouble("fails"):
            container = self._docker.containers.create(self._image, **_options(self._config, self.owner, slot))
            try:
                container.start()
                connection = self._accept(listener, container)
                (slot.control / "socket").unlink()
                container.reload()
            except BaseException:
                self._remove(container.attrs["Id"])
                raise
        return Container(container.attrs["Id"], connection, container.attrs["State"]["Pid"])

    def remove(self, container: Container) -> None:
        with _engine_trouble("fails"):
            self._remove(container.id)

    def remove_ended(self, container: Container) -> str:
        """Removes a container whose process 1 has ended; returns why that was, in words for the agent."""
        with _engine_trouble("fails"):
            try:
                old = self._docker.containers.get(container.id)
                with contextlib.suppress(requests.exceptions.RequestException):  # it hangs: then it is removed as it is
                    old.wait(timeout=5)
                old.reload()
                self._remove(container.id)
            except docker.errors.NotFound:
                return "its container was removed"
        return why_it_ended(out_of_memory=old.attrs["State"]["OOMKilled"], memory_mb=self._config.memory_mb)

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

    def _named_image(self) -> str:
        try:
            self._docker.images.get(self._config.image)
        except docker.errors.ImageNotFound:
            raise SandboxUnavailableError(
                f"sandbox.image: the engine has no image {self._config.image!r}. Build it "
                f"(`docker build -t {self._config.image} -f docker/Dockerfile .`), pull it, or set "
                f"sandbox.image={HOST_ROOTFS}, which needs no registry."
            ) from None
        return self._config.image

    def _host_image(self) -> str:
        tar = image_tar()
        repository, tag = "jaxagent/host-rootfs", hashlib.sha256(tar).hexdigest()[:12]
        try:
            self._docker.images.get(f"{repository}:{tag}")
        except docker.errors.ImageNotFound:
            self._docker.api.import_image_from_data(tar, repository=repository, tag=tag)
        return f"{repository}:{tag}"


def _options(config: SandboxConfig, owner: tuple[int, int] | None, slot: Slot) -> dict[str, Any]:
    uid, gid = owner or (os.getuid(), os.getgid())
    environment = shell_environment("/tmp")
    if config.image == HOST_ROOTFS:
        python, host = os.path.realpath(sys.executable), host_paths()
    else:
        python, host = "python3", []
        del environment["PATH"]  # the image's own
    disk = config.disk_mb << 20
    return {
        "entrypoint": shell_server.start_command(python),
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
            *(docker.types.Mount(path, path, type="bind", read_only=True) for path in host),
            docker.types.Mount(shell_server.MOUNT, str(shell_server.SOURCE), type="bind", read_only=True),
            docker.types.Mount(_CONTROL, str(slot.control), type="bind", read_only=True),
            docker.types.Mount("/sandbox", str(slot.box), type="bind"),
        ],
        "labels": {LABEL: process_name()},
        "log_config": docker.types.LogConfig(type="json-file", config={"max-size": "100k", "max-file": "1"}),
    }


@contextlib.contextmanager
def _engine_trouble(what: str) -> Iterator[None]:
    try:
        yield
    except _ENGINE_ERRORS as error:
        where = os.environ.get("DOCKER_HOST", "unix:///var/run/docker.sock")
        raise SandboxUnavailableError(f"Docker Engine at {where} {what}: {error}. {HOW_TO_START}") from error


def refuse_mapped_users(info: dict[str, Any]) -> None:
    """Inside such an engine's containers nobody is the owner of a workdir, so an agent could write nothing."""
    mapped = [option for option in info.get("SecurityOptions") or [] if option in ("name=rootless", "name=userns")]
    if mapped:
        raise SandboxUnavailableError(
            f"Docker Engine runs with {mapped[0].removeprefix('name=')}, so users in containers are not those of this "
            "machine, and a workdir cannot be shared with them. Use an engine without it, or sandbox.backend=process "
            "for trusted code."
        )
