"""The Ray actor of evaluation: a process boundary around EvaluationService, and nothing more.

In a Ray program of one's own:

    evaluation = EvaluationActor.remote()
    request = EvaluationRequest(config=…, policy=parse_policy("kernels:DIR"), tasks=load_tasks("DIR"), out=Path("DIR"))
    rows = ray.get(evaluation.run.remote(request))
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import ray

from jaxagent.evaluation.policy_source import AdapterSource, RunSource
from jaxagent.evaluation.request import EvaluationRequest
from jaxagent.evaluation.scorecard import Row
from jaxagent.evaluation.service import EvaluationService
from jaxagent.run.progress_relay import Event, ProgressRelay
from rollout.actors import call
from sandbox.actors.judge import RemoteJudge


class _EvaluationProcess:
    """Builds an EvaluationService inside the actor's process; forwards."""

    def __init__(self) -> None:
        self._progress = ProgressRelay()
        self._service = EvaluationService(self._progress, export=_export_elsewhere)

    async def run(
        self, request: EvaluationRequest, judge: RemoteJudge | None = None, rollout_actors: Sequence[Any] = ()
    ) -> list[Row]:
        """See EvaluationService.run."""
        return await self._service.run(request, judge=judge, rollout_actors=rollout_actors)

    async def progress(self) -> list[Event]:
        """What happened since the last call, for jaxagent.run.progress_relay.followed."""
        return self._progress.take()


@ray.remote(num_cpus=0, max_retries=0)
def _export(source: RunSource | AdapterSource, out: Path) -> str:
    from jaxagent.evaluation.export import export_source

    return export_source(source, out)


async def _export_elsewhere(source: RunSource | AdapterSource, out: Path) -> str:
    """In a process of its own, whose JAX leaves accelerators alone: the engines want their memory."""
    export = _export.options(runtime_env={"env_vars": {"JAX_PLATFORMS": "cpu"}})
    return await call(export, source, out)


EvaluationActor = ray.remote(num_cpus=0)(_EvaluationProcess)
"""`run` may be called again, also to continue an evaluation that was interrupted; one at a time in one folder."""
