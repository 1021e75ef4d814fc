"""CompileActors and the fleet of them that a judge keeps."""

from __future__ import annotations

import asyncio
from typing import Any

import ray

from sandbox.actors.asking import LostError, ask
from sandbox.compile import CompileService
from sandbox.config import CompileConfig
from sandbox.types import Candidate, CompileResult, SandboxUnavailableError


class _CompileProcess:
    """Builds a CompileService inside the actor's process; forwards."""

    def __init__(self, config: CompileConfig) -> None:
        self._service = CompileService(config)

    def compile(self, skill: str, candidate: Candidate) -> CompileResult:
        return self._service.compile(skill, candidate)


CompileActor = ray.remote(num_cpus=0)(_CompileProcess)


class CompileFleet:
    """CompileActors, each with one candidate at a time; a dead one is replaced and its candidate compiled elsewhere."""

    def __init__(self, config: CompileConfig, *, max_retries: int) -> None:
        self._config = config.model_copy(update={"num_workers": 1})
        self._max_retries = max_retries
        self._idle: asyncio.Queue[Any] = asyncio.Queue()
        self.num_replaced = 0
        for _ in range(config.num_workers):
            self._idle.put_nowait(None)  # made when first needed

    async def compile(self, skill: str, candidate: Candidate) -> CompileResult:
        """Raises SandboxUnavailableError, the actor's own or after `max_retries` + 1 lost actors."""
        for attempt in range(self._max_retries + 1):
            actor: Any = await self._idle.get()
            try:
                actor = actor or CompileActor.options(scheduling_strategy="SPREAD").remote(self._config)
                limit_s = self._config.timeout_s + 120.0  # its own limit, and a start of the actor
                return await ask(actor.compile, skill, candidate, died=LostError, limit_s=limit_s)
            except LostError as error:
                ray.kill(actor)
                actor = None
                self.num_replaced += 1
                if attempt == self._max_retries:
                    text = f"{attempt + 1} compile workers were lost over one candidate, the last one: {error}"
                    raise SandboxUnavailableError(text) from error
            finally:
                self._idle.put_nowait(actor)
        raise AssertionError("unreachable: the last attempt returns or raises")

    def close(self) -> None:
        while not self._idle.empty():
            actor = self._idle.get_nowait()
            if actor is not None:
                ray.kill(actor)
