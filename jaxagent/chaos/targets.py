"""The processes of one run by their kind: found in the driver's process tree, so that no other run is touched."""

from __future__ import annotations

import re
from collections.abc import Iterator
from enum import StrEnum
from pathlib import Path

import psutil

from jaxagent.flow.process_tree import title, tree
from sandbox.backends import shell_server
from sandbox.backends.slots import slots_root


class Kind(StrEnum):
    """What can be hit. The store's writer is the driver's process."""

    ROLLOUT_ACTOR = "rollout_actor"
    ENGINE = "engine"
    PROFILER = "profiler"
    JUDGE = "judge"
    COMPILE = "compile"
    CONTAINER = "container"
    LEARNER = "learner"
    DRIVER = "driver"
    DISK = "disk"
    SOCKET = "socket"
    DOCKER_ENGINE = "docker_engine"
    """Of the whole machine: hit only where it is asked for by name."""


_TITLES = {
    Kind.ROLLOUT_ACTOR: ("ray::_RolloutProcess",),
    Kind.ENGINE: ("ray::_EngineProcess", "VLLM::EngineCore"),
    Kind.PROFILER: ("ray::_ProfilerProcess",),
    Kind.JUDGE: ("ray::_JudgeProcess",),
    Kind.COMPILE: ("ray::_CompileProcess",),
    Kind.LEARNER: ("ray::_LearnerProcess",),
}
_SLOT = re.compile(r"/jaxagent-sandboxes-\d+/[^/ ]*-(\d+)-\d+\.\d+\.[0-9a-f]+/box ")


def find(kind: Kind, driver: int) -> list[int]:
    """Process ids of that kind in the run of process `driver`, in a fixed order; empty where there is none now."""
    if kind in (Kind.DRIVER, Kind.DISK):
        return [driver] if psutil.pid_exists(driver) else []
    if kind is Kind.DOCKER_ENGINE:
        return sorted(process.pid for process in psutil.process_iter(["name"]) if process.info["name"] == "dockerd")
    if kind is Kind.CONTAINER:
        return sorted(_containers(set(_of_titles(_TITLES[Kind.ROLLOUT_ACTOR], driver))))
    if kind is Kind.SOCKET:
        return [pid for pid in _of_titles(_TITLES[Kind.ROLLOUT_ACTOR], driver) if sockets(pid)]
    return _of_titles(_TITLES[kind], driver)


def sockets(rollout_actor: int) -> list[Path]:
    """The judge's sockets in the containers' workdirs of one rollout actor."""
    return sorted(slots_root().glob(f"*-{rollout_actor}-*.*.*/box/work/.service/sock"))


def _of_titles(titles: tuple[str, ...], driver: int) -> list[int]:
    found: list[int] = []
    try:
        processes = tree(driver)
    except psutil.NoSuchProcess:
        return found
    for process in processes:
        try:
            if title(process) in titles:
                found.append(process.pid)
        except (psutil.NoSuchProcess, psutil.ZombieProcess):
            continue
    return sorted(found)


def _containers(rollout_actors: set[int]) -> Iterator[int]:
    """First processes of containers whose slot one of these actors has made: the mount's source names its maker."""
    for process in psutil.process_iter(["cmdline"]):
        if shell_server.MOUNT not in (process.info["cmdline"] or []):
            continue
        try:
            slot = _SLOT.search(Path(f"/proc/{process.pid}/mountinfo").read_text())
        except OSError:
            continue
        if slot is not None and int(slot.group(1)) in rollout_actors:
            yield process.pid
