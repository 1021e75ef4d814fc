"""Which number of a trajectory is its reward in training."""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal

from rollout.types import Trajectory
from sandbox.reward import raw_speedup
from sandbox.types import Judgement

RewardKind = Literal["paper", "raw_speedup"]
RewardSource = Literal["final", "best"]


def training_reward(trajectory: Trajectory, *, kind: RewardKind = "paper", source: RewardSource = "final") -> float:
    """`paper`: Eq. 1 as judged. `raw_speedup`: compile_ms / candidate_ms if correct, else -1.

    `final` takes the judgement of the last workspace, `best` the largest of it and the timed ones on the way.
    Raises ValueError where the final judgement was not timed although it was correct.
    """
    score: Callable[[Judgement], float | None] = _paper if kind == "paper" else _raw_speedup
    final = score(trajectory.judgement)
    if final is None:
        raise ValueError(
            f"trajectory {trajectory.trajectory_id!r}: its final judgement is "
            f"{trajectory.judgement.outcome} without a measured time; judge final workspaces with "
            "timed=True"
        )
    if source == "final":
        return float(final)
    earlier = [score(turn.judgement) for turn in trajectory.turns if turn.judgement is not None]
    return float(max([final, *(value for value in earlier if value is not None)]))


def _paper(judgement: Judgement) -> float | None:
    return judgement.reward


def _raw_speedup(judgement: Judgement) -> float | None:
    if judgement.accepted and (judgement.candidate_ms is None or judgement.compile_ms is None):
        return None
    return raw_speedup(judgement)
