"""Trajectories made up for a store, and their comparison to the bit."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from rollout.config import StoreConfig
from rollout.store import TrajectoryStore
from rollout.types import StopReason, ToolCall, Trajectory, Turn
from sandbox.types import Judgement, Outcome

CONFIG = StoreConfig(fsync=False, segment_mb=64)
LOG = "log-000000.bin"


def make_turn(rng: np.random.Generator, prompt: np.ndarray, *, num_tokens: int) -> Turn:
    return Turn(
        prompt_token_ids=prompt,
        token_ids=rng.integers(0, 1024, num_tokens).astype(np.int32),
        logprobs=-rng.exponential(size=num_tokens).astype(np.float32),
        policy_versions=np.full(num_tokens, 3, np.int32),
        text="a reply …",
        tool_calls=[ToolCall(name="bash", arguments={"command": "ls", "big": 10**40})],
        observations=["kernels\n", "\udcff not UTF-8"],
        judgement=Judgement(outcome=Outcome.WRONG, reward=-1.0, message="off by one", details={"largest": [0.1, 2]}),
    )


def make_trajectory(
    name: str = "stage1:0", *, stage: str = "stage1", seed: int = 0, num_turns: int = 3, num_tokens: int = 20
) -> Trajectory:
    rng = np.random.default_rng(seed)
    turns: list[Turn] = []
    prompt = rng.integers(0, 1024, 50).astype(np.int32)
    for _ in range(num_turns):
        turns.append(make_turn(rng, prompt, num_tokens=num_tokens))
        prompt = np.concatenate((prompt, turns[-1].token_ids, rng.integers(0, 1024, 7).astype(np.int32)))
    return Trajectory(
        trajectory_id=name,
        task_id="synthetic/1",
        sample_index=seed,
        stage=stage,
        seed=seed,
        turns=turns,
        judgement=Judgement(
            outcome=Outcome.CORRECT, reward=3.0, message="", candidate_ms=1.25, eager_ms=3.5, compile_ms=None
        ),
        stop_reason=StopReason.FINISHED,
        seconds=12.75,
    )


def assert_same(left: Trajectory, right: Trajectory) -> None:
    """Equal in every field; arrays in dtype, shape and bits (NaN included)."""
    for field in Trajectory.__dataclass_fields__:
        if field != "turns":
            assert getattr(left, field) == getattr(right, field), field
    assert len(left.turns) == len(right.turns)
    for ours, theirs in zip(left.turns, right.turns, strict=True):
        for field in Turn.__dataclass_fields__:
            mine, other = getattr(ours, field), getattr(theirs, field)
            if isinstance(mine, np.ndarray):
                assert (mine.dtype, mine.shape, mine.tobytes()) == (other.dtype, other.shape, other.tobytes()), field
            else:
                assert mine == other, field


def fill(path: Path, count: int) -> list[Trajectory]:
    trajectories = [make_trajectory(f"t{index}", seed=index) for index in range(count)]
    with TrajectoryStore(path, CONFIG) as store:
        for trajectory in trajectories:
            store.append(trajectory)
    return trajectories
