"""The same plan as jaxagent.flow.simulate, with real Ray actors: rollouts, router, tools, store and manifests.

Scripted engines answer after the load's times, a judge of one word ends each trajectory, and a learner of
`learner_s` seconds publishes a version. Everything between them is the code of training.
"""

from __future__ import annotations

import asyncio
import functools
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from jaxagent.collection.collector import Collector
from jaxagent.collection.tickets import Ticket, TicketOrder, TicketWindow
from jaxagent.flow.simulate import STAGE, FlowPlan, FlowResult
from jaxagent.synthesis.sources import resolve_tasks
from rollout.actors import EngineActor, call, engine_policy, start_rollout_actors
from rollout.config import DialogueConfig, EngineConfig
from rollout.packages import WeightsPackage
from rollout.store import TrajectoryStore
from rollout.types import Trajectory
from sandbox.config import SandboxConfig
from sandbox.types import Candidate, Judge, Judgement, Outcome, Sanitized, Task


class ConstantJudge(Judge):
    """Finds every candidate wrong, at once: what is measured here is not judging."""

    async def judge(self, task: Task, candidate: Candidate, *, skill: str, timed: bool = True) -> Judgement:
        return Judgement(outcome=Outcome.WRONG, reward=-1.0, message="not looked at")

    async def sanitize(self, task: Task, candidate: Candidate, *, skill: str) -> Sanitized:
        return Sanitized(clean=True, text="not looked at")


@dataclass(frozen=True, slots=True, kw_only=True)
class FlowActors:
    """How many real actors carry a plan."""

    tokenizer_dir: Path
    num_actors: int = 2
    num_engines: int = 1
    backend: Literal["docker", "process", "files"] = "files"
    max_context_tokens: int = 32_768


class Flow:
    """Engines and rollout actors of one plan, started once; Ray runs already. `run` may be called again."""

    def __init__(self, plan: FlowPlan, actors: FlowActors) -> None:
        self.plan, self._actors_config = plan, actors
        self._version = 0
        self._tasks = resolve_tasks("synthetic:train")
        engine = EngineConfig(scripted=plan.load)
        self._engines = [EngineActor.remote(str(actors.tokenizer_dir), engine) for _ in range(actors.num_engines)]
        self._actors = start_rollout_actors(
            actors.num_actors,
            trajectories_per_actor=-(-plan.slots // actors.num_actors),
            policies=lambda number: {
                "actor": functools.partial(engine_policy, actors.tokenizer_dir, self._engines, offset=number)
            },
            judge=ConstantJudge(),
            sandbox_config=SandboxConfig(backend=actors.backend),
            skill="cpp",
        )
        self._under_way = [0] * len(self._actors)
        self._dialogue = DialogueConfig(
            max_turns=plan.load.max_turns, max_context_tokens=actors.max_context_tokens, max_seconds=1e6
        )

    async def warm_up(self) -> None:
        """Every process has started, imported and answered once."""
        await asyncio.gather(*(call(engine.start) for engine in self._engines))
        order = TicketOrder(self._tasks, stage="warm", seed=0)
        await asyncio.gather(*(self._rollout_on(i, order.ticket(i), "warm") for i in range(len(self._actors))))

    async def run(
        self, store: TrajectoryStore, *, on_accept: Callable[[Trajectory], None] = lambda _: None
    ) -> FlowResult:
        """Plays the plan once; the store is empty before and holds every trajectory and manifest after."""
        plan, staleness, busy_s = self.plan, [], 0.0

        def accepted(trajectory: Trajectory) -> None:
            nonlocal busy_s
            busy_s += trajectory.seconds
            on_accept(trajectory)

        began = time.monotonic()
        async with self._collector(store, accepted) as collector:
            for _ in range(plan.updates):
                for trajectory in await collector.batch():
                    staleness.append(self._version - trajectory.oldest_version)
                await asyncio.sleep(plan.learner_s)
                await self._publish(self._version + 1)
                await collector.update_finished()
        seconds = time.monotonic() - began
        return FlowResult(seconds=seconds, staleness=staleness, busy=busy_s / (seconds * plan.slots))

    def _collector(self, store: TrajectoryStore, on_accept: Callable[[Trajectory], None]) -> Collector:
        plan = self.plan
        return Collector(
            order=TicketOrder(self._tasks, stage=STAGE, seed=plan.load.seed),
            window=TicketWindow(
                batch_size=plan.batch_size, max_staleness=plan.max_staleness, limit=plan.batch_size * plan.updates
            ),
            store=store,
            stage=STAGE,
            rollout=self._rollout,
            version=lambda: self._version,
            sampling_version=lambda: self._version,
            capacity=plan.slots,
            max_retries=0,
            on_accept=on_accept,
        )

    async def _publish(self, version: int) -> None:
        package = WeightsPackage(version=version, files=[])
        await asyncio.gather(*(call(engine.publish, package) for engine in self._engines))
        self._version = version

    async def _rollout(self, ticket: Ticket) -> Trajectory:
        index = min(range(len(self._actors)), key=self._under_way.__getitem__)
        self._under_way[index] += 1
        try:
            return await self._rollout_on(index, ticket, STAGE)
        finally:
            self._under_way[index] -= 1

    async def _rollout_on(self, index: int, ticket: Ticket, stage: str) -> Any:
        return await call(
            self._actors[index].run,
            ticket.task,
            policy="actor",
            stage=stage,
            sample_index=ticket.sample_index,
            seed=ticket.seed,
            dialogue=self._dialogue,
            trajectory_id=ticket.trajectory_id,
        )

    async def close(self) -> None:
        await asyncio.gather(*(call(engine.close) for engine in self._engines))
