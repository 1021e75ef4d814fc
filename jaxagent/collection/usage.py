"""What share of the profilers, the engines and the rollout actors was in use between two updates."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from typing import Any

from rollout.actors import call
from rollout.types import EngineError
from sandbox.actors.judge import RemoteJudge
from sandbox.occupancy import Occupancy
from sandbox.types import DeviceError


class UsageMeter:
    """Differences of running totals. A pool that was restarted or does not answer has no figure that time."""

    def __init__(self, *, num_jobs: int, engine_sequences: int, rollouts: int) -> None:
        """`num_jobs`: judgements that all devices have under way; `engine_sequences`: what all engines decode at once;
        `rollouts`: dialogues that all actors hold at once."""
        self._capacity = {"profiler": num_jobs, "engine": engine_sequences, "rollout": rollouts}
        self.under_way = Occupancy()
        """Rollouts."""
        self._before: dict[str, float] = {}
        self._taken = time.monotonic()

    async def take(self, judge: RemoteJudge, engines: Sequence[Any]) -> dict[str, float]:
        """Since this was asked last: profiler_use, engine_use, rollout_use in [0, 1], and engine_tokens_per_s."""
        totals = {"rollout": self.under_way.seconds, **await _profilers(judge), **await _engines(engines)}
        now = time.monotonic()
        elapsed, self._taken = max(now - self._taken, 1e-9), now
        before, self._before = self._before, totals
        rates = {name: (total - before[name]) / elapsed for name, total in totals.items() if name in before}
        metrics = {
            f"{name}_use": rates[name] / capacity
            for name, capacity in self._capacity.items()
            if capacity and rates.get(name, -1.0) >= 0
        }
        if rates.get("engine_tokens", -1.0) >= 0:
            metrics["engine_tokens_per_s"] = rates["engine_tokens"]
        return metrics


async def _profilers(judge: RemoteJudge) -> dict[str, float]:
    try:
        return {"profiler": (await judge.stats())["device_seconds"]}
    except DeviceError:  # rollouts meet the same trouble and are repeated; a figure is not worth a run
        return {}


async def _engines(engines: Sequence[Any]) -> dict[str, float]:
    try:
        used = await asyncio.gather(*(call(engine.usage, died=EngineError) for engine in engines))
    except EngineError:
        return {}
    return {"engine": sum(seconds for seconds, _ in used), "engine_tokens": float(sum(tokens for _, tokens in used))}
