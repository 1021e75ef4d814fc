"""Several engines as one: a dialogue stays with the engine that has its prefix cached, a new one goes where least is
under way."""

from __future__ import annotations

import time
from collections import OrderedDict
from collections.abc import Sequence

import numpy as np

from rollout.policy import EngineClient
from rollout.types import Completion, RolloutError, SamplingParams

REST_S = 10.0
"""An engine that failed gets no new dialogue for so long, unless all have: an idle one would look least loaded."""

_MAX_SESSIONS = 65_536
"""Dialogues whose engine is remembered; the longest unused are forgotten, which costs them a cached prefix."""


class EngineRouter:
    """EngineClient over `engines`.

    Load is the number of requests that this router has under way; among equals the engine with fewer dialogues is
    taken, then the first from `offset` on (give every router its own, so that they do not all begin with engine 0).
    """

    def __init__(self, engines: Sequence[EngineClient], *, offset: int = 0) -> None:
        if not engines:
            raise ValueError("engine.num_engines must be at least 1")
        self._engines = list(engines)
        self._offset = offset
        self._under_way = [0] * len(engines)
        self._dialogues = [0] * len(engines)
        self._failed_at = [-REST_S] * len(engines)
        self._placed: OrderedDict[str, int] = OrderedDict()
        self.requests = 0
        self.failures = 0

    async def generate(self, prompt_token_ids: np.ndarray, params: SamplingParams, session_id: str) -> Completion:
        """Asks the dialogue's engine. When that one fails the dialogue loses its place: a retry may go elsewhere."""
        index = self._place(session_id)
        self.requests += 1
        self._under_way[index] += 1
        try:
            return await self._engines[index].generate(prompt_token_ids, params, session_id)
        except RolloutError:
            self._forget(session_id)
            self._failed_at[index] = time.monotonic()
            self.failures += 1
            raise
        finally:
            self._under_way[index] -= 1

    def stats(self) -> dict[str, list[int] | int]:
        """Requests under way and dialogues placed, by engine; requests and failures in all."""
        return {
            "under_way": list(self._under_way),
            "dialogues": list(self._dialogues),
            "requests": self.requests,
            "failures": self.failures,
        }

    def _place(self, session_id: str) -> int:
        if session_id in self._placed:
            self._placed.move_to_end(session_id)
            return self._placed[session_id]
        count = len(self._engines)
        now = time.monotonic()
        index = min(
            range(count),
            key=lambda i: (
                now - self._failed_at[i] < REST_S,
                self._under_way[i],
                self._dialogues[i],
                (i - self._offset) % count,
            ),
        )
        self._placed[session_id] = index
        self._dialogues[index] += 1
        if len(self._placed) > _MAX_SESSIONS:
            self._forget(next(iter(self._placed)))
        return index

    def _forget(self, session_id: str) -> None:
        index = self._placed.pop(session_id, None)
        if index is not None:
            self._dialogues[index] -= 1
