"""Ray wrapper: candidate tasks run on the devices of a cluster. Behaviour lives in sandbox.taskcheck.probe."""

from __future__ import annotations

import fcntl
import itertools
import os
import tempfile
from pathlib import Path
from typing import IO, Any

import ray

from sandbox.config import JudgeConfig
from sandbox.judge.spec import device_spec
from sandbox.taskcheck.config import ProbeConfig
from sandbox.taskcheck.probe import Evidence, TaskProber


class _ProberActor:
    """A TaskProber on the device that Ray gives this process."""

    def __init__(self, config: ProbeConfig) -> None:
        index, self._claim = _claim_cores()
        judge = JudgeConfig(device=config.device, num_devices=index + 1, cores_per_device=config.cores_per_device)
        self._prober = TaskProber(config, device_spec(judge, index, gpu=0 if config.device == "cuda" else None))

    def eager(self, code: str) -> Evidence:
        return self._prober.eager(code)

    def compiled(self, code: str) -> Evidence:
        return self._prober.compiled(code)

    def close(self) -> None:
        self._prober.close()


def _claim_cores() -> tuple[int, IO[bytes]]:
    """The first set of this node's cores that no other actor has, and the open file that holds it until we end.

    Ray counts cores and does not hand out any in particular.
    """
    folder = Path(tempfile.gettempdir()) / f"jaxagent-probe-slots-{os.getuid()}"
    folder.mkdir(mode=0o700, exist_ok=True)
    for index in itertools.count():
        held = open(folder / str(index), "wb")  # noqa: SIM115 - stays open as long as the actor lives
        try:
            fcntl.flock(held, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            held.close()
        else:
            return index, held
    raise AssertionError("unreachable")


class RayProber:
    """A prober somewhere in the cluster, called from a thread that waits."""

    def __init__(self, config: ProbeConfig) -> None:
        options: dict[str, Any] = {
            "num_cpus": config.cores_per_device,
            "num_gpus": 1 if config.device == "cuda" else 0,
            "max_concurrency": config.num_compilers + 1,
            "max_restarts": 2,
        }
        actor: Any = ray.remote(**options)(_ProberActor)
        self._actor = actor.remote(config)

    def eager(self, code: str) -> Evidence:
        return ray.get(self._actor.eager.remote(code))

    def compiled(self, code: str) -> Evidence:
        return ray.get(self._actor.compiled.remote(code))

    def close(self) -> None:
        ray.get(self._actor.close.remote())
        ray.kill(self._actor)


def ray_probers(config: ProbeConfig) -> list[RayProber]:
    """One a device; connects to the cluster of RAY_ADDRESS, or starts one here."""
    if not ray.is_initialized():
        ray.init(log_to_driver=False)
    return [RayProber(config) for _ in range(config.num_devices)]
