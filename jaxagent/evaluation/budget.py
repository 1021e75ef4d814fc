"""Tokens, seconds and money of an evaluation: what was spent, and when it is enough."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Iterable
from dataclasses import dataclass

from jaxagent.collection.tickets import Ticket
from jaxagent.config.run import BudgetConfig
from rollout.types import Trajectory


class BudgetUsedUpError(RuntimeError):
    """No more samples are to be started; those that are there are the result."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Spent:
    """Over all samples. `cost` is None where no prices are set."""

    samples: int
    prompt_tokens: int
    completion_tokens: int
    cost: float | None

    def sentence(self) -> str:
        text = f"{self.samples} samples: {self.prompt_tokens:,} prompt and {self.completion_tokens:,} reply tokens"
        return text if self.cost is None else f"{text}, cost {self.cost:,.2f} at the prices of evaluation.budget"


def spent(trajectories: Iterable[Trajectory], config: BudgetConfig) -> Spent:
    samples = prompt_tokens = completion_tokens = 0
    for trajectory in trajectories:
        samples += 1
        for turn in trajectory.turns:
            prompt_tokens += turn.usage.prompt_tokens if turn.usage else len(turn.prompt_token_ids)
            completion_tokens += turn.usage.completion_tokens if turn.usage else len(turn.token_ids)
    cost = None
    if config.price_per_million_prompt_tokens is not None and config.price_per_million_completion_tokens is not None:
        cost = (
            prompt_tokens * config.price_per_million_prompt_tokens
            + completion_tokens * config.price_per_million_completion_tokens
        ) / 1e6
    return Spent(samples=samples, prompt_tokens=prompt_tokens, completion_tokens=completion_tokens, cost=cost)


class Budget:
    """Stands between the tickets and the rollouts of one evaluation."""

    def __init__(self, config: BudgetConfig, before: Iterable[Trajectory]) -> None:
        """`before`: the samples that are there already; they count."""
        self._config = config
        self._spent = spent(before, config)
        self._started = time.monotonic()
        self._under_way = 0
        self._ended = asyncio.Event()

    def limited(self, rollout: Callable[[Ticket], Awaitable[Trajectory]]) -> Callable[[Ticket], Awaitable[Trajectory]]:
        """`rollout`, but raising BudgetUsedUpError once the budget is used up and what was under way is accepted.

        Rollouts that have begun are paid for, so they are waited for: a limit is passed by what they take.
        """

        async def within_budget(ticket: Ticket) -> Trajectory:
            while (reason := self.used_up()) is not None:
                if not self._under_way:
                    raise BudgetUsedUpError(reason)
                self._ended.clear()
                await self._ended.wait()
            self._under_way += 1
            try:
                return await rollout(ticket)
            except BaseException:  # cancellation too: it is no longer under way; raised again
                self._end()
                raise

        return within_budget

    def accept(self, trajectory: Trajectory) -> None:
        """Counts a sample that is in the store."""
        one, all_ = spent([trajectory], self._config), self._spent
        self._spent = Spent(
            samples=all_.samples + 1,
            prompt_tokens=all_.prompt_tokens + one.prompt_tokens,
            completion_tokens=all_.completion_tokens + one.completion_tokens,
            cost=None if all_.cost is None or one.cost is None else all_.cost + one.cost,
        )
        self._end()

    def used_up(self) -> str | None:
        """Which limit was reached, with its key; None while there is room."""
        config, tokens = self._config, self._spent.prompt_tokens + self._spent.completion_tokens
        seconds, cost = time.monotonic() - self._started, self._spent.cost
        if config.max_tokens is not None and tokens >= config.max_tokens:
            return f"evaluation.budget.max_tokens={config.max_tokens} is used up ({tokens} tokens)"
        if config.max_cost is not None and cost is not None and cost >= config.max_cost:
            return f"evaluation.budget.max_cost={config.max_cost:g} is used up ({cost:.4g})"
        if config.max_seconds is not None and seconds >= config.max_seconds:
            return f"evaluation.budget.max_seconds={config.max_seconds:g} is used up ({seconds:.0f} s)"
        return None

    def _end(self) -> None:
        self._under_way -= 1
        self._ended.set()
