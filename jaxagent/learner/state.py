"""Where a learner stands apart from its networks, and how that goes into a checkpoint."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import Any

import numpy as np

from jaxagent.batches.packing import choose_row_tokens
from jaxagent.learner.checkpoint import CheckpointError


@dataclass
class Progress:
    """Counters; everything random is drawn from (seed, stage, counters), so they are the learner's RNG as well."""

    policy_version: int = 0
    stage: str | None = None
    updates: int = 0
    """Updates of the stage, with epoch and group the place in its data where it is trained on a log."""
    epoch: int = 0
    group: int = 0
    data_digest: str | None = None
    row_tokens: int = 0
    """Length of the stage's rows so far."""
    critic_started: bool = False

    def begin(self, stage: str) -> None:
        self.stage, self.data_digest = stage, None
        self.updates = self.epoch = self.group = self.row_tokens = 0

    def advance(self, *, num_groups: int) -> None:
        self.updates += 1
        self.group += 1
        if self.group == num_groups:
            self.epoch, self.group = self.epoch + 1, 0

    def fit_rows(self, longest: int, *, row_tokens: int) -> None:
        self.row_tokens = max(self.row_tokens, choose_row_tokens(longest, row_tokens=row_tokens))

    def check_data(self, data_digest: str) -> None:
        if self.data_digest not in (None, data_digest):
            raise ValueError(
                f"stage {self.stage!r} began on other trajectories than these; pass the same ones in the "
                "same order to every call of a stage, also after a resume"
            )
        self.data_digest = data_digest


@dataclass(frozen=True)
class LearnerState:
    """What a checkpoint holds beside the networks."""

    progress: Progress
    seed: int
    value_targets: list[np.ndarray]
    """Returns of this epoch's value pre-training, [tokens] a trajectory."""
    lengths: list[int] | None = None

    @classmethod
    def of(cls, record: dict[str, Any], *, seed: int) -> LearnerState:
        if record["seed"] != seed:
            raise CheckpointError(
                f"the checkpoint was written with seed={record['seed']} and this run has "
                f"seed={seed}; resume with the run's own config.yaml"
            )
        return cls(Progress(**record["progress"]), seed, [], record["value_target_lengths"])

    def record(self) -> dict[str, Any]:
        return {
            "progress": dataclasses.asdict(self.progress),
            "seed": self.seed,
            "value_target_lengths": [len(targets) for targets in self.value_targets],
        }

    def arrays(self) -> dict[str, np.ndarray]:
        """One array; a single 0 ends it so that it is never empty."""
        if self.lengths is not None:
            return {"value_targets": np.zeros(sum(self.lengths) + 1, np.float32)}
        return {"value_targets": np.concatenate([*self.value_targets, np.zeros(1, np.float32)])}

    def split_targets(self, joined: np.ndarray) -> list[np.ndarray]:
        cuts = np.cumsum(self.lengths or [], dtype=int)
        return [part.copy() for part in np.split(np.asarray(joined), cuts)[:-1]]
