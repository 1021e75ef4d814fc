"""Which trajectories rejection fine-tuning keeps (paper, stage 3a: R > 0, no redundant loops, no schema violations)."""

from __future__ import annotations

import json
from typing import Literal

from rollout.types import Trajectory, Turn

MAX_LOOP_TURNS = 4
_POLLING = {"bash_output"}


def reject_reason(trajectory: Trajectory) -> Literal["reward", "malformed_call", "redundant_loop"] | None:
    """Why rejection fine-tuning drops a trajectory, or None where it keeps it. The first reason counts."""
    reward = trajectory.judgement.reward
    if reward is None or reward <= 0:
        return "reward"
    if has_malformed_call(trajectory):
        return "malformed_call"
    if has_redundant_loop(trajectory):
        return "redundant_loop"
    return None


def has_malformed_call(trajectory: Trajectory) -> bool:
    """Whether any call broke its syntax, named an unknown tool, or had arguments that the tool's schema refuses.

    A call that was cut off with its reply broke its syntax. A well-formed call that could not be done (no such file,
    a command that failed) is none.
    """
    return any(call.error is not None for turn in trajectory.turns for call in turn.tool_calls)


def has_redundant_loop(trajectory: Trajectory, *, repeats: int = 2) -> bool:
    """Whether the policy went in a circle: a block of 1 to 4 turns carried out `repeats` times in a row.

    Turns are the same when their lists of calls are (name and arguments; what the model said around them and what
    came back do not count). Since a write's content is an argument, the same calls in a row leave the workspace as
    it was and can teach nothing new. Turns without a call, and turns that only poll a background command, form no
    loop.
    """
    if repeats < 2:
        raise ValueError(f"repeats={repeats} must be at least 2: one pass is no loop")
    signatures = [_signature(turn) for turn in trajectory.turns]
    for period in range(1, MAX_LOOP_TURNS + 1):
        length = period * repeats
        for start in range(len(signatures) - length + 1):
            block = signatures[start : start + period]
            window = signatures[start : start + length]
            if None not in block and all(window[i] == block[i % period] for i in range(length)):
                return True
    return False


def _signature(turn: Turn) -> str | None:
    if all(call.name in _POLLING for call in turn.tool_calls):  # also where there is none
        return None
    calls = [[call.name, call.arguments, call.error] for call in turn.tool_calls]
    return json.dumps(calls, sort_keys=True, ensure_ascii=False)
