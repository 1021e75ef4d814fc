"""The learner's Ray actor: a process boundary around LearnerService, and nothing more."""

from __future__ import annotations

import os
from typing import Any

import ray

from jaxagent.config.run import RunConfig
from rollout.packages import PackedPackage


class _LearnerProcess:
    """Builds a LearnerService inside the actor's process; forwards. JAX is imported there and nowhere else."""

    def start(self, config: RunConfig, root: str) -> None:
        # Not in __init__, whose exceptions Ray turns into a dead actor without their message.
        for name, value in learner_environment(config).items():
            os.environ.setdefault(name, value)
        from jaxagent.learner.service import LearnerService

        self._service = LearnerService(config, root, host=ray.util.get_node_ip_address())

    def call(self, method: str, *args: Any, **kwargs: Any) -> Any:
        return getattr(self._service, method)(*args, **kwargs)

    @ray.method(concurrency_group="send")
    def send(self, package: PackedPackage) -> None:
        self._service.send_weights(package)

    def join_quiet(self, registry_dir: Any) -> None:
        self._service.join_quiet(registry_dir)


def learner_environment(config: RunConfig) -> dict[str, str]:
    """Variables that JAX reads when it is imported; what the user has set wins."""
    if not config.gpus.learner:
        return {"JAX_PLATFORMS": "cpu"}
    if config.gpus.learner_memory is None:
        # JAX would take three quarters of a GPU at once, also of one that it shares with an engine.
        return {"XLA_PYTHON_CLIENT_PREALLOCATE": "false"}
    # At once: taken by and by it comes in regions of which none may be as large as a step needs.
    return {"XLA_PYTHON_CLIENT_MEM_FRACTION": str(config.gpus.learner_memory)}


_options: dict[str, Any] = {"num_cpus": 0, "concurrency_groups": {"send": 8}}
LearnerActor = ray.remote(**_options)(_LearnerProcess)
