"""The Ray actors that any policy is rolled out with: started, watched, replaced when they die, and closed.

owner ─► judge             compile workers and profiler devices behind it
      ─► engine x M        vLLM; starts while earlier work goes on
      ─► rollout actor x N dialogues, many at a time
"""

from __future__ import annotations

import asyncio
import functools
import logging
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Self

import ray

from jaxagent.collection.placement import Placement, place
from jaxagent.collection.ray_connection import connect_ray
from jaxagent.collection.tickets import Ticket
from jaxagent.collection.usage import UsageMeter
from jaxagent.config.run import RunConfig
from jaxagent.run.progress import Progress
from rollout.actors import EngineActor, call, engine_policy, start_rollout_actors, watch_actors
from rollout.config import DialogueConfig
from rollout.packages import Package, PackedPackage, addressed_to, needs_sending
from rollout.types import EngineError, Policy, RolloutError, Trajectory
from sandbox.actors.judge import RemoteJudge, start_judge
from sandbox.quiet_registry import new_registry, remove_abandoned, remove_registry

logger = logging.getLogger(__name__)


Policies = Callable[[int], Mapping[str, Callable[[], Policy]]]
"""From a rollout actor's number, by name what makes each policy."""


class RolloutCluster:
    """Judge, engines and rollout actors, used by one event loop alone.

    `judge` and `rollout_actors`: such as run already and are somebody else's; they are used and not closed.
    `verdicts`: file in which a judge of its own keeps what it has judged.
    """

    _has_learner = False

    def __init__(
        self,
        config: RunConfig,
        progress: Progress,
        *,
        judge: RemoteJudge | None = None,
        rollout_actors: Sequence[Any] = (),
        verdicts: Path | None = None,
    ) -> None:
        self._config, self._progress, self._given_judge = config, progress, judge
        self._verdicts = verdicts
        self._engines: list[Any] = []
        self._starts: list[int] = []
        self._engines_started: asyncio.Task[None] | None = None
        self._use_rollout_actors(rollout_actors)
        self._published: int | None = None
        self._package: Package | None = None
        self._reviving = asyncio.Lock()
        self._placement: Placement
        self._engine_restarts = 0
        self._silent_actors = 0
        self._watching: asyncio.Task[None] | None = None
        engine, rollout = config.engine, config.rollout
        self._usage = UsageMeter(
            num_jobs=config.judge.num_jobs,
            engine_sequences=engine.num_engines * engine.max_num_seqs,
            rollouts=rollout.num_actors * rollout.trajectories_per_actor,
        )

    async def __aenter__(self) -> Self:
        self._own_ray = connect_ray()
        remove_abandoned()
        self._registry = new_registry(self._config.name)
        try:
            self._placement = await self._place()
        except BaseException:  # cancellation too: nothing stays reserved; raised again
            self._leave_ray()
            raise
        self.judge = self._given_judge or start_judge(
            self._config.judge,
            self._config.compile,
            registry_dir=self._registry,
            verdicts=self._verdicts,
            device_options=self._placement.profilers(),
        )
        return self

    async def __aexit__(self, *_: object) -> None:
        background = [task for task in (self._engines_started, self._watching) if task is not None]
        for task in background:
            task.cancel()
        await asyncio.gather(*background, return_exceptions=True)
        with_limit = [asyncio.wait_for(close, 30.0) for close in self._closing()]
        for problem in await asyncio.gather(*with_limit, return_exceptions=True):
            if isinstance(problem, Exception):
                logger.warning("while closing: %s: %s", type(problem).__name__, problem)
        self._placement.release()
        self._leave_ray()

    async def _place(self) -> Placement:
        return await place(
            self._config,
            with_learner=self._has_learner,
            with_judge=self._given_judge is None,
            own_ray=self._own_ray,
            say=self._progress.say,
        )

    def _leave_ray(self) -> None:
        if self._own_ray:
            ray.shutdown()
        remove_registry(self._registry)

    def _closing(self) -> list[Any]:
        closing = [call(engine.close) for engine in self._engines]
        return closing if self._given_judge is not None else [*closing, self.judge.close()]

    def start_engines(self, model_dir: Path) -> None:
        """In the background: `engines_ready` waits for them."""
        engine = self._config.engine
        self._engines = [
            EngineActor.options(**self._placement.engine(index)).remote(str(model_dir), engine)
            for index in range(engine.num_engines)
        ]
        self._starts = [0] * engine.num_engines
        self._engines_started = asyncio.create_task(self._start_engines())

    async def engines_ready(self) -> None:
        """Every engine serves, with the weights of its folder until others are published."""
        if self._engines_started is None:
            raise RuntimeError("engines_ready: start_engines() comes first")
        await self._engines_started

    async def start_rollout_actors(self, policies: Policies, dialogues: Sequence[DialogueConfig]) -> None:
        """`dialogues`: those that will be held, so that sandboxes are tried before any of them begins."""
        config = self._config
        self._use_rollout_actors(
            start_rollout_actors(
                config.rollout.num_actors,
                trajectories_per_actor=config.rollout.trajectories_per_actor,
                policies=policies,
                judge=self.judge,
                sandbox_config=config.sandbox,
                skill=config.tasks.skill,
                quiet_dir=self._registry if config.judge.quiet else None,
            )
        )
        if any(dialogue.kind == "agentic" for dialogue in dialogues):
            await asyncio.gather(*(self._check_sandbox(actor) for actor in self._rollout_actors))
        watched = [*self._rollout_actors, *self._engines]
        self._watching = asyncio.create_task(
            watch_actors(watched, silence_s=config.rollout.silence_s, on_silent=self._count_silence)
        )

    def engine_policies(self, model_dir: Path) -> Callable[[int], Callable[[], Policy]]:
        """From a rollout actor's number, what makes its policy over these engines."""
        return lambda number: functools.partial(engine_policy, model_dir, self._engines, offset=number)

    @property
    def rollout_capacity(self) -> int:
        return len(self._rollout_actors) * self._config.rollout.trajectories_per_actor

    def take_engine_restarts(self) -> int:
        """Since this was asked last."""
        count, self._engine_restarts = self._engine_restarts, 0
        return count

    def take_silent_actors(self) -> int:
        """Actors that were ended because they gave no sign of life, since this was asked last."""
        count, self._silent_actors = self._silent_actors, 0
        return count

    def _count_silence(self) -> None:
        self._silent_actors += 1

    async def take_usage(self) -> dict[str, float]:
        """How busy the pools were since this was asked last (UsageMeter.take)."""
        return await self._usage.take(self.judge, self._engines)

    async def rollout(self, ticket: Ticket, *, stage: str, dialogue: DialogueConfig, policy: str) -> Trajectory:
        """One trajectory on the least busy actor. Raises RolloutError, SandboxUnavailableError, DeviceError."""
        index = min(range(len(self._under_way)), key=self._under_way.__getitem__)
        self._under_way[index] += 1
        try:
            with self._usage.under_way.use():
                return await call(
                    self._rollout_actors[index].run,
                    ticket.task,
                    policy=policy,
                    stage=stage,
                    sample_index=ticket.sample_index,
                    seed=ticket.seed,
                    dialogue=dialogue,
                    trajectory_id=ticket.trajectory_id,
                )
        except EngineError:
            await self._revive_engines()  # a repeat of this rollout should find an engine that answers
            raise
        finally:
            self._under_way[index] -= 1

    async def _check_sandbox(self, actor: Any) -> None:
        """Raises SandboxUnavailableError; an actor that is lost meanwhile is asked again once Ray has restarted it."""
        for attempt in range(self._config.rollout.max_retries + 1):
            try:
                return await call(actor.check_sandbox)
            except RolloutError as error:
                if attempt == self._config.rollout.max_retries:
                    raise
                logger.warning("a rollout actor was lost before its first rollout: %s", error)
                await asyncio.sleep(min(2.0**attempt, 30.0))

    async def _publish_to(self, index: int, package: Package) -> dict[str, Any]:
        try:
            return await self._exchange(index, package)
        except EngineError as error:
            logger.warning("an engine failed while it got version %d and is started again: %s", package.version, error)
            await self._restart(index)
            return await self._exchange(index, package)

    async def _exchange(self, index: int, package: Package) -> dict[str, Any]:
        """One engine takes over the package's weights; where they have to be sent, the learner sends meanwhile."""
        publish = self._engines[index].publish
        if not needs_sending(package):
            return await call(publish, package, died=EngineError)
        package = addressed_to(package, engine=index, start=self._starts[index])
        # Not awaited where the engine fails: it then waits in the learner until its time is up, and nobody for it.
        sending = asyncio.ensure_future(self._send(package))
        sending.add_done_callback(lambda task: task.cancelled() or task.exception())
        report = await call(publish, package, died=EngineError)
        await sending
        return report

    async def _send(self, package: PackedPackage) -> None:
        raise RuntimeError(f"version {package.version} would have to be sent, and there is no learner")

    async def _revive_engines(self) -> None:
        """Starts engines again that do not answer, with the weights that were published last."""
        async with self._reviving:
            for index, engine in enumerate(self._engines):
                try:
                    await call(engine.check_health, died=EngineError)
                except EngineError as error:
                    logger.warning("an engine is down and is started again: %s", error)
                    await self._restart(index)
                    if self._package is not None:
                        await self._exchange(index, self._package)

    async def _restart(self, index: int) -> None:
        self._engine_restarts += 1
        self._starts[index] += 1
        await call(self._engines[index].start, died=EngineError)
        await self._quieten(self._engines[index])

    async def _start_engines(self) -> None:
        seconds = await asyncio.gather(*(call(handle.start, died=EngineError) for handle in self._engines))
        for handle in self._engines:
            await self._quieten(handle)
        self._progress.say(f"{len(self._engines)} vLLM engine(s) ready in {max(seconds):.0f} s")

    def _use_rollout_actors(self, actors: Sequence[Any]) -> None:
        self._rollout_actors = list(actors)
        self._under_way = [0] * len(self._rollout_actors)

    async def _quieten(self, handle: Any) -> None:
        """The actor's processes stand still while a kernel is timed on their machine, where the config asks for it."""
        if self._config.judge.quiet:
            await call(handle.join_quiet, self._registry)
