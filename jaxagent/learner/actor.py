"""The learner's Ray actor: a process boundary around LearnerService, and nothing more."""

from __future__ import annotations

from typing import Any

import ray

from jaxagent.config.run import RunConfig


class _LearnerProcess:
    """Builds a LearnerService inside the actor's process; forwards. JAX is imported there and nowhere else."""

    def start(self, config: RunConfig, root: str) -> None:
        # Not in __init__, whose exceptions Ray turns into a dead actor without their message.
        from jaxagent.learner.service import LearnerService

        self._service = LearnerService(config, root)

    def call(self, method: str, *args: Any, **kwargs: Any) -> Any:
        return getattr(self._service, method)(*args, **kwargs)

    def join_quiet(self, registry_dir: Any) -> None:
        self._service.join_quiet(registry_dir)


LearnerActor = ray.remote(num_cpus=0)(_LearnerProcess)
