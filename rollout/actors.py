"""Ray actors of the rollout flow: process boundaries around VllmEngine and RolloutWorker, and nothing more.

driver ──run(task, …)──► RolloutActor x N ──generate(token ids)──► EngineActor x M ◄──publish(weights)── driver
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import cloudpickle
import numpy as np
import ray
import ray.exceptions

from rollout.chat import ChatFormat
from rollout.config import DialogueConfig, EngineConfig
from rollout.engine import VllmEngine
from rollout.packages import Package
from rollout.policy import TokenPolicy
from rollout.router import EngineRouter
from rollout.scripted_engine import ScriptedEngine
from rollout.types import Completion, EngineError, Policy, RolloutError, SamplingParams, Trajectory
from rollout.worker import RolloutWorker
from sandbox.actors.asking import cause, summary
from sandbox.backends import warm_up
from sandbox.config import SandboxConfig
from sandbox.occupancy import Occupancy
from sandbox.quiet import QuietLease
from sandbox.types import Judge, Task

logger = logging.getLogger(__name__)

MAX_CONCURRENT_REQUESTS = 4096
"""Of one engine actor; vLLM queues what it cannot run at once."""
_RESTART_S = 120.0
"""A restarted actor may be silent for so much longer: it imports, and makes its policies."""


class _EngineProcess:
    """Builds an engine inside the actor's process; forwards."""

    def __init__(self, model_dir: str, config: EngineConfig) -> None:
        # Starting, which can fail, is not done here: Ray turns that into a dead actor without its exception.
        self._make: Callable[[], VllmEngine | ScriptedEngine] = (
            partial(VllmEngine, model_dir, config)
            if config.scripted is None
            else partial(ScriptedEngine, model_dir, config.scripted)
        )
        self._engine = self._make()
        self._was_started = False
        self._quiet: QuietLease | None = None
        self._occupancy, self._num_tokens = Occupancy(), 0

    async def start(self, version: int = 0) -> float:
        """Starts the engine, in place of the one that there was: also what follows a failure. The folder's weights
        are loaded; publish the current ones before anybody generates."""
        if self._was_started:
            await self._engine.close()
            self._engine = self._make()
        self._was_started = True
        return await self._engine.start(version=version)

    async def generate(self, prompt_token_ids: np.ndarray, params: SamplingParams, session_id: str) -> Completion:
        with self._occupancy.use():
            completion = await self._engine.generate(prompt_token_ids, params, session_id)
        self._num_tokens += len(completion.token_ids)
        return completion

    async def usage(self) -> tuple[float, int]:
        """(seconds of requests under way, summed over them; tokens sampled), since this process began."""
        return self._occupancy.seconds, self._num_tokens

    async def publish(self, package: Package, version: int | None = None) -> dict[str, Any]:
        """Begins when nobody is frozen, and nobody is until its end: replies wait no longer than the exchange takes."""
        return await asyncio.shield(asyncio.ensure_future(self._publish(package, version)))

    async def _publish(self, package: Package, version: int | None) -> dict[str, Any]:
        with contextlib.ExitStack() as stack:
            if self._quiet is not None:
                await asyncio.to_thread(stack.enter_context, self._quiet.awake())
            return await self._engine.publish(package, version)

    async def check_health(self, timeout_s: float = 30.0) -> None:
        await self._engine.check_health(timeout_s=timeout_s)

    async def version(self) -> int:
        return self._engine.version

    async def process_ids(self) -> list[int]:
        """Of the engine's own processes, and last of this actor's."""
        return [*self._engine.process_ids(), os.getpid()]

    async def join_quiet(self, registry_dir: Path) -> None:
        """This actor and the engine's own processes stand still while a kernel is timed on their machine."""
        self._quiet = QuietLease(registry_dir)
        for pid in (*self._engine.process_ids(), os.getpid()):
            self._quiet.register(pid)

    async def close(self) -> None:
        await self._engine.close()


class _RolloutProcess:
    """Builds a RolloutWorker for every policy inside the actor's process; runs many dialogues at once."""

    def __init__(
        self,
        packed: bytes,
        sandbox_config: SandboxConfig,
        skill: str,
        *,
        quiet_dir: Path | None,
        scratch_dir: Path | None,
    ) -> None:
        """`packed`: cloudpickled policies and judge, see start_rollout_actors."""
        self._policies: Mapping[str, Callable[[], Policy]]
        self._policies, self._judge = cloudpickle.loads(packed)
        self._sandbox_config, self._skill, self._scratch_dir = sandbox_config, skill, scratch_dir
        self._quiet = QuietLease(quiet_dir) if quiet_dir is not None else None
        if self._quiet is not None:
            self._quiet.register(os.getpid())
        self._workers: dict[str, RolloutWorker] = {}

    async def run(
        self,
        task: Task,
        *,
        policy: str,
        stage: str,
        sample_index: int,
        seed: int,
        dialogue: DialogueConfig,
        trajectory_id: str | None = None,
    ) -> Trajectory:
        """One trajectory by the policy of that name, see RolloutWorker.run."""
        return await self._worker(policy).run(
            task, stage=stage, sample_index=sample_index, seed=seed, dialogue=dialogue, trajectory_id=trajectory_id
        )

    async def process_ids(self) -> list[int]:
        return [os.getpid()]

    async def check_sandbox(self) -> None:
        """Starts what agents' shells will run in. Raises SandboxUnavailableError with what to do about it."""
        await warm_up(self._sandbox_config)

    def _worker(self, policy: str) -> RolloutWorker:
        # Not in __init__, whose exceptions Ray turns into a dead actor without their type.
        if policy not in self._policies:
            raise ValueError(f"policy={policy!r} is not known to this actor; known: {', '.join(self._policies)}")
        if policy not in self._workers:
            self._workers[policy] = RolloutWorker(
                self._policies[policy](),
                self._judge,
                self._sandbox_config,
                self._skill,
                compile=getattr(self._judge, "compile", None),
                quiet=self._quiet,
                scratch_dir=self._scratch_dir,
            )
        return self._workers[policy]


_remote: Any = ray.remote  # its overloads do not know max_concurrency
# Both come back under the same handle when their process is killed; the calls that were under way are lost and
# counted, never repeated behind the driver's back.
EngineActor = _remote(num_cpus=0, max_restarts=-1, max_concurrency=MAX_CONCURRENT_REQUESTS)(_EngineProcess)
"""A restarted one refuses requests (EngineError) until `start` and `publish` are called again."""
RolloutActor = _remote(num_cpus=0, max_restarts=-1)(_RolloutProcess)
"""Started by start_rollout_actors."""


class ActorEngine:
    """EngineClient over an EngineActor's handle."""

    def __init__(self, handle: Any) -> None:
        self._handle = handle

    async def generate(self, prompt_token_ids: np.ndarray, params: SamplingParams, session_id: str) -> Completion:
        """Raises EngineError also where the actor or its node is gone. Cancelling aborts the engine's request."""
        return await call(self._handle.generate, prompt_token_ids, params, session_id, died=EngineError)


async def call(method: Any, *args: Any, died: type[RolloutError] = RolloutError, **kwargs: Any) -> Any:
    """Awaits `method.remote(...)`: its own exceptions come back as they were raised, a lost actor as `died`.

    When the caller is cancelled, so is the remote call.
    """
    reference = method.remote(*args, **kwargs)
    try:
        return await reference
    except asyncio.CancelledError:
        if ray.is_initialized():  # else Ray would start itself again, or join somebody else's cluster
            ray.cancel(reference)
        raise
    except ray.exceptions.RayTaskError as error:
        # Ray wraps the exception in a class of its own; records and handlers downstream want the plain one.
        raise cause(error) from None
    except ray.exceptions.RayError as error:  # the actor died, its node is gone, or it was cancelled from elsewhere
        raise died(f"a remote call was lost: {summary(error)}") from error


def engine_policy(tokenizer_dir: Path | str, engines: Sequence[Any], *, offset: int = 0) -> TokenPolicy:
    """A policy over EngineActor handles, for RolloutActor's `policies` (with functools.partial).

    `offset`: give every rollout actor its own number, so that their first dialogues go to different engines.
    """
    router = EngineRouter([ActorEngine(engine) for engine in engines], offset=offset)
    return TokenPolicy(router, ChatFormat.from_folder(tokenizer_dir))


def start_rollout_actors(
    count: int,
    *,
    trajectories_per_actor: int,
    policies: Callable[[int], Mapping[str, Callable[[], Policy]]],
    judge: Judge,
    sandbox_config: SandboxConfig,
    skill: str,
    quiet_dir: Path | None = None,
    scratch_dir: Path | None = None,
    ray_options: dict[str, Any] | None = None,
) -> list[Any]:
    """Handles of `count` RolloutActors, each with so many dialogues at once.

    `policies`: from an actor's number, by name what makes each policy; called in the actor, so that no live object
    has to be sent. `judge`: one that can be sent, such as RemoteJudge. `quiet_dir`: registry of the machine's quiet
    lease, which the actors and their sandboxes join; None where nothing is frozen.
    """
    options = {"max_concurrency": trajectories_per_actor} | (ray_options or {})
    actors = []
    for number in range(count):
        # As bytes: Ray complains about a restartable actor whose arguments hold handles. The driver keeps those alive.
        packed = cloudpickle.dumps((policies(number), judge))
        actor = RolloutActor.options(**options)
        actors.append(actor.remote(packed, sandbox_config, skill, quiet_dir=quiet_dir, scratch_dir=scratch_dir))
    return actors


async def watch_actors(handles: Sequence[Any], *, silence_s: float, on_silent: Callable[[], None]) -> None:
    """Ends actors that give no sign of life for `silence_s` (stopped, swapped out, stuck in a system call), for ever.

    Ray restarts them under the same handle, and what was under way in them is lost and repeated: a process that is
    gone is noticed by itself, one that is merely silent never would be. `on_silent` counts.
    """
    await asyncio.gather(*(_watch(handle, silence_s, on_silent) for handle in handles))


async def _watch(handle: Any, silence_s: float, on_silent: Callable[[], None]) -> None:
    starting_s = 0.0
    while True:
        try:
            async with asyncio.timeout(silence_s + starting_s):
                await call(handle.process_ids)
            starting_s = 0.0
        except TimeoutError:
            on_silent()
            logger.warning("an actor gave no sign of life for %g s and is started again", silence_s + starting_s)
            ray.kill(handle, no_restart=False)
            starting_s = _RESTART_S
        except RolloutError:
            starting_s = _RESTART_S  # it died, and is being restarted
        await asyncio.sleep(silence_s / 4)
