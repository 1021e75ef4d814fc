"""A load of dialogues whose lengths and times are drawn from a seed: the same for a run and for its simulation."""

from __future__ import annotations

import hashlib
import math

import numpy as np
from pydantic import Field

from sandbox.config import Config


class TurnLoad(Config):
    """How long dialogues are: turns geometric and capped, the time of one turn lognormal. A long tail, as agents have.

    The defaults are those of the project's own target for asynchronous rollouts.
    """

    mean_turns: float = Field(default=8.0, ge=1)
    """Of the geometric distribution, before the cap."""
    max_turns: int = Field(default=30, gt=0)
    median_turn_s: float = Field(default=0.3, gt=0)
    sigma: float = Field(default=1.0, ge=0)
    """Standard deviation of the logarithm of a turn's time; 0: every turn takes the median."""
    fixed_turns: bool = False
    """Every dialogue has `max_turns`."""
    seed: int = 0

    def turn_seconds(self, session_id: str) -> tuple[float, ...]:
        """Seconds of each turn of the dialogue with that id."""
        digest = hashlib.sha256(f"{self.seed}/{session_id}".encode()).digest()
        random = np.random.default_rng(int.from_bytes(digest[:8], "big"))
        drawn = int(random.geometric(1.0 / self.mean_turns))
        num_turns = self.max_turns if self.fixed_turns else min(drawn, self.max_turns)
        return tuple((self.median_turn_s * np.exp(self.sigma * random.standard_normal(num_turns))).tolist())

    @property
    def mean_trajectory_s(self) -> float:
        """The expected time of a whole dialogue: mean turns after the cap, times mean seconds of a turn."""
        going_on = 1.0 - 1.0 / self.mean_turns
        turns = self.max_turns if self.fixed_turns else self.mean_turns * (1.0 - going_on**self.max_turns)
        return turns * self.median_turn_s * math.exp(self.sigma**2 / 2)
