"""How large pools have to be: a simulation of one cluster's steps, with service times that were measured.

    trajectory: engine ─► shell | compile ─► profiler ─► engine … 150 turns … ─► profiler (final judgement) ─► learner

Engines share a GPU among their sequences: a decoding step takes base + slope x sequences. Compile cores and profiler
GPUs serve one job at a time, first come first served. Tickets and staleness are those of training.
"""

from __future__ import annotations

import math
from collections.abc import Generator
from dataclasses import dataclass
from typing import Any

import numpy as np
import simpy
from pydantic import Field

from jaxagent.collection.tickets import TicketWindow
from sandbox.config import Config


class ServiceTimes(Config):
    """What one turn asks of the pools. Every figure belongs to a model and a machine: put yours here."""

    turns: int = Field(default=150, gt=0)
    reply_tokens: float = Field(default=500.0, gt=0)
    """Mean tokens that the policy writes a turn."""
    engine_base_s: float = Field(default=0.004, gt=0)
    engine_slope_s: float = Field(default=4.6e-5, ge=0)
    """A decoding step of n sequences takes base + slope x n."""
    engine_sequences: int = Field(default=512, gt=0)
    """More wait in the engine's queue."""
    shell_s: float = Field(default=0.5, ge=0)
    """Mean of a command or an edit; it takes no pooled resource."""
    compile_share: float = Field(default=0.3, ge=0, le=1)
    """Part of the turns that compile; verify and profile compile first as well, but meet the cache."""
    compile_s: float = Field(default=2.0, gt=0)
    verify_share: float = Field(default=0.15, ge=0, le=1)
    verify_s: float = Field(default=2.5, gt=0)
    profile_share: float = Field(default=0.05, ge=0, le=1)
    profile_s: float = Field(default=7.0, gt=0)
    learner_tokens_per_s: float = Field(default=60_000.0, gt=0)
    """Of one GPU: forward and backward of actor and critic over every token of a trajectory."""
    trajectory_tokens: float = Field(default=131_072.0, gt=0)
    sigma: float = Field(default=0.8, ge=0)
    """Spread of replies and of jobs: standard deviation of the logarithm, at the means above."""

    @property
    def turn_shares(self) -> tuple[float, float, float]:
        return self.compile_share, self.verify_share, self.profile_share


class Pools(Config):
    """One way to use a cluster."""

    engines: int = Field(gt=0)
    profilers: int = Field(gt=0)
    learners: int = Field(gt=0)
    """GPUs each; the three together are the cluster's."""
    compile_cores: int = Field(gt=0)
    batch_size: int = Field(default=1024, gt=0)
    max_staleness: int = Field(default=1, ge=0)

    @property
    def gpus(self) -> int:
        return self.engines + self.profilers + self.learners


@dataclass(frozen=True, slots=True, kw_only=True)
class PoolReport:
    """Means over steps in the stride of the cluster: neither its first, which fill the pools, nor its last."""

    step_s: float
    engine_busy: float
    """Sequences over the engines' room for them."""
    profiler_busy: float
    compile_busy: float
    learner_busy: float
    profiler_wait_s: float
    """Mean time that a job waits for a GPU."""
    compile_wait_s: float


def demand(times: ServiceTimes, batch_size: int) -> dict[str, float]:
    """Seconds of each resource that one step needs: with n of it a step can not be shorter than demand / n."""
    turns = batch_size * times.turns
    full_step_s = times.engine_base_s + times.engine_slope_s * times.engine_sequences
    jobs_s = times.verify_share * times.verify_s + times.profile_share * times.profile_s
    return {
        "engines": turns * times.reply_tokens * full_step_s / times.engine_sequences,
        "profilers": turns * jobs_s + batch_size * times.profile_s,
        "learners": batch_size * times.trajectory_tokens / times.learner_tokens_per_s,
        "compile_cores": turns * times.compile_share * times.compile_s,
    }


def split(times: ServiceTimes, gpus: int, *, batch_size: int = 1024, max_staleness: int = 1) -> Pools:
    """GPUs in proportion to what each pool is asked for, at least one each; compile cores keep up with them."""
    if gpus < 3:
        raise ValueError(f"gpus={gpus}: an engine, a profiler and a learner need one each, so at least 3")
    needs = demand(times, batch_size)
    names = ("engines", "profilers", "learners")
    counts = dict.fromkeys(names, 1)
    for _ in range(gpus - 3):  # one at a time to the pool that holds a step up longest
        counts[max(names, key=lambda name: needs[name] / counts[name])] += 1
    step_s = max(needs[name] / counts[name] for name in names)
    cores = max(1, math.ceil(1.2 * needs["compile_cores"] / step_s))  # a fifth to spare: they are the cheapest
    return Pools(**counts, compile_cores=cores, batch_size=batch_size, max_staleness=max_staleness)


def simulate_pools(times: ServiceTimes, pools: Pools, *, steps: int = 3, seed: int = 0) -> PoolReport:
    """Runs the cluster until it is in its stride, then `steps` updates that are reported on; it goes on behind them."""
    return _Cluster(times, pools, steps, seed).run()


class _Cluster:
    """The state of one simulation."""

    def __init__(self, times: ServiceTimes, pools: Pools, steps: int, seed: int) -> None:
        self._times, self._pools = times, pools
        self._random = np.random.default_rng(seed)
        self._env = simpy.Environment()
        self._engines = [simpy.Resource(self._env, times.engine_sequences) for _ in range(pools.engines)]
        self._profilers = _Pool(self._env, pools.profilers)
        self._compilers = _Pool(self._env, pools.compile_cores)
        ahead = pools.max_staleness + 1
        self._warm_updates, self._steps, self._version = ahead, steps, 0
        limit = pools.batch_size * (2 * ahead + steps)
        self._window = TicketWindow(batch_size=pools.batch_size, max_staleness=pools.max_staleness, limit=limit)
        self._changed = self._env.event()
        self._generating_s = self._learning_s = 0.0

    def run(self) -> PoolReport:
        done = self._env.process(self._learner())
        self._dispatch()
        self._env.run(until=done)
        seconds, pools = self._env.now - self._began, self._pools
        room = pools.engines * self._times.engine_sequences
        return PoolReport(
            step_s=seconds / self._steps,
            engine_busy=self._generating_s / (seconds * room),
            profiler_busy=self._profilers.busy_s / (seconds * pools.profilers),
            compile_busy=self._compilers.busy_s / (seconds * pools.compile_cores),
            learner_busy=self._learning_s / seconds,
            profiler_wait_s=self._profilers.mean_wait_s,
            compile_wait_s=self._compilers.mean_wait_s,
        )

    def _dispatch(self) -> None:
        while (number := self._window.dispatch(self._version)) is not None:
            self._env.process(self._trajectory(number, self._version))

    def _learner(self) -> Generator[Any, Any, None]:
        step_s = demand(self._times, self._pools.batch_size)["learners"] / self._pools.learners
        for update in range(self._warm_updates + self._steps):
            while self._window.take(self._version) is None:
                self._changed = self._env.event()
                yield self._changed
            yield self._env.timeout(step_s)
            self._learning_s += step_s
            self._version += 1
            self._window.finish_update()
            self._dispatch()
            if update == self._warm_updates - 1:
                self._measure_from_here()

    def _measure_from_here(self) -> None:
        self._began = self._env.now
        self._generating_s = self._learning_s = 0.0
        self._profilers.forget()
        self._compilers.forget()

    def _trajectory(self, number: int, version: int) -> Generator[Any, Any, None]:
        times = self._times
        engine = self._engines[number % len(self._engines)]
        draws = self._random.random(times.turns)
        edges = np.cumsum(times.turn_shares)
        for draw in draws:
            yield from self._generate(engine)
            if draw < edges[0]:
                yield from self._compilers.serve(self._around(times.compile_s))
            elif draw < edges[1]:
                yield from self._profilers.serve(self._around(times.verify_s))
            elif draw < edges[2]:
                yield from self._profilers.serve(self._around(times.profile_s))
            else:
                yield self._env.timeout(self._around(times.shell_s))
        yield from self._profilers.serve(self._around(times.profile_s))
        self._window.accept(number, version)
        if not self._changed.triggered:
            self._changed.succeed()

    def _generate(self, engine: simpy.Resource) -> Generator[Any, Any, None]:
        times = self._times
        with engine.request() as place:
            yield place
            step_s = times.engine_base_s + times.engine_slope_s * engine.count
            seconds = self._around(times.reply_tokens) * step_s
            yield self._env.timeout(seconds)
            self._generating_s += seconds

    def _around(self, mean: float) -> float:
        """Lognormal with that mean."""
        sigma = self._times.sigma
        return mean * math.exp(sigma * self._random.standard_normal() - sigma**2 / 2)


class _Pool:
    """Servers of one job at a time, and what they did since `forget`."""

    def __init__(self, env: simpy.Environment, size: int) -> None:
        self._env, self._servers = env, simpy.Resource(env, size)
        self.forget()

    def forget(self) -> None:
        self.busy_s, self._waited_s, self._jobs = 0.0, 0.0, 0

    @property
    def mean_wait_s(self) -> float:
        return self._waited_s / max(self._jobs, 1)

    def serve(self, seconds: float) -> Generator[Any, Any, None]:
        asked = self._env.now
        with self._servers.request() as place:
            yield place
            self._waited_s += self._env.now - asked
            self._jobs += 1
            yield self._env.timeout(seconds)
            self.busy_s += seconds
