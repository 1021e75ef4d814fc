from __future__ import annotations

import dataclasses

import numpy as np
import pytest

from rollout.filters import has_malformed_call, has_redundant_loop, reject_reason
from rollout.types import StopReason, ToolCall, Trajectory, Turn
from sandbox.types import Judgement, Outcome

NO_TOKENS = np.zeros(0, np.int32)


def call(name: str, **arguments) -> ToolCall:
    return ToolCall(name=name, arguments=arguments)


def trajectory(*turns: list[ToolCall], reward: float | None = 3.0) -> Trajectory:
    outcome = Outcome.CORRECT if reward is None or reward > 0 else Outcome.WRONG
    return Trajectory(
        trajectory_id="t", task_id="t", sample_index=0, stage="s", seed=0, stop_reason=StopReason.FINISHED,
        judgement=Judgement(outcome=outcome, reward=reward, message=""),
        turns=[
            Turn(prompt_token_ids=NO_TOKENS, token_ids=NO_TOKENS, logprobs=NO_TOKENS.astype(np.float32),
                 policy_versions=NO_TOKENS, text=f"turn {i}", tool_calls=calls, observations=[f"took {i} ms"] * len(calls))
            for i, calls in enumerate(turns)
        ],
    )  # fmt: skip


VERIFY = [call("bash", command="python3 utils/verification.py")]
PROFILE = [call("bash", command="python3 utils/profiling.py")]


def write(content: str) -> list[ToolCall]:
    return [call("write", path="kernels/k.cpp", content=content)]


@pytest.mark.parametrize(
    ("turns", "expected"),
    [
        ([], False),
        ([VERIFY], False),
        ([VERIFY, VERIFY], True),  # nothing can have changed
        ([write("a"), VERIFY, write("b"), VERIFY], False),  # work
        ([write("a"), VERIFY, write("a"), VERIFY], True),
        ([VERIFY, PROFILE, VERIFY, PROFILE], True),
        ([VERIFY, PROFILE, VERIFY], False),
        ([write("a"), VERIFY, PROFILE, [], write("a"), VERIFY, PROFILE, []], False),  # a turn without a call
        ([write("a"), write("b"), VERIFY, PROFILE] * 2, True),
        ([write("a"), write("b"), VERIFY, PROFILE, write("c")] * 2, False),  # longer than MAX_LOOP_TURNS
        ([[call("bash_output", job_id="1")]] * 5, False),  # polling
        ([VERIFY + PROFILE, VERIFY, PROFILE], False),  # the same calls, but other turns
        ([[ToolCall(name="", arguments={}, error="broken")]] * 2, True),
    ],
)
def test_a_redundant_loop_is_a_block_of_turns_carried_out_twice_in_a_row(turns, expected: bool) -> None:
    assert has_redundant_loop(trajectory(*turns)) is expected


def test_more_repeats_can_be_allowed() -> None:
    assert not has_redundant_loop(trajectory(VERIFY, VERIFY), repeats=3)
    assert has_redundant_loop(trajectory(VERIFY, VERIFY, VERIFY), repeats=3)
    with pytest.raises(ValueError, match="repeats=1"):
        has_redundant_loop(trajectory(VERIFY), repeats=1)


def test_the_order_of_arguments_does_not_matter() -> None:
    turns = [[call("write", path="a", content="b")], [call("write", content="b", path="a")]]
    assert has_redundant_loop(trajectory(*turns))


def test_a_malformed_call_is_one_with_an_error() -> None:
    good = trajectory(VERIFY, write("a"))
    assert not has_malformed_call(good)
    assert has_malformed_call(trajectory(VERIFY, [ToolCall(name="fly", arguments={}, error="unknown tool")]))
    failed = dataclasses.replace(good.turns[0], observations=["error: no such file: a"])
    assert not has_malformed_call(dataclasses.replace(good, turns=[failed]))


def test_rejection_fine_tuning_keeps_what_earned_a_reward_without_loops_or_violations() -> None:
    broken = [ToolCall(name="", arguments={}, error="broken")]
    assert reject_reason(trajectory(write("a"), VERIFY)) is None
    assert reject_reason(trajectory(VERIFY, reward=-1.0)) == "reward"
    assert reject_reason(trajectory(VERIFY, reward=None)) == "reward"
    assert reject_reason(trajectory(broken, VERIFY)) == "malformed_call"
    assert reject_reason(trajectory(VERIFY, VERIFY)) == "redundant_loop"
