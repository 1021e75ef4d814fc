"""What becomes of a trajectory in bytes: exactly itself, and few of them."""

from __future__ import annotations

import pickle

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from stored import assert_same, make_trajectory

from rollout.trajectory_codec import decode_trajectory, encode_trajectory
from rollout.types import StopReason, ToolCall, Trajectory, Turn
from sandbox.types import Judgement, Outcome

tokens = hnp.arrays(np.int32, st.integers(0, 30))
json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=6,
)
any_text = st.text(st.characters(exclude_categories=()), max_size=40)  # lone surrogates too
judgements = st.builds(
    Judgement,
    outcome=st.sampled_from(Outcome),
    reward=st.none() | st.sampled_from([-1.0, 1.0, 2.0, 3.0]),
    message=any_text,
    candidate_ms=st.none() | st.floats(0, 1e6),
    details=st.dictionaries(st.text(max_size=5), json_values, max_size=3),
)
turns = st.builds(
    Turn,
    prompt_token_ids=tokens,
    token_ids=tokens,
    logprobs=hnp.arrays(np.float32, st.integers(0, 30)),
    policy_versions=tokens,
    text=any_text,
    tool_calls=st.lists(
        st.builds(
            ToolCall,
            name=any_text,
            error=st.none() | any_text,
            arguments=st.dictionaries(any_text, json_values, max_size=3),
        ),
        max_size=2,
    ),
    observations=st.lists(any_text, max_size=2),
    judgement=st.none() | judgements,
    truncated=st.booleans(),
    routing=st.none() | hnp.arrays(st.sampled_from([np.uint8, np.int16]), hnp.array_shapes(max_dims=3, max_side=4)),
)


@given(st.lists(turns, max_size=4), st.data())
@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large])
def test_any_trajectory_survives_the_codec_bit_for_bit(drawn: list[Turn], data: st.DataObject) -> None:
    chained: list[Turn] = []
    for turn in drawn:  # half of the prompts continue the dialogue, as real ones do; the rest do not
        if chained and data.draw(st.booleans()):
            prompt = np.concatenate((chained[-1].prompt_token_ids, chained[-1].token_ids, turn.prompt_token_ids))
            turn = Turn(
                **{name: getattr(turn, name) for name in Turn.__dataclass_fields__} | {"prompt_token_ids": prompt}
            )
        chained.append(turn)
    trajectory = Trajectory(
        trajectory_id="x",
        task_id="t",
        sample_index=1,
        stage="s",
        seed=2**70,
        turns=chained,
        judgement=data.draw(judgements),
        stop_reason=StopReason.MAX_TURNS,
        seconds=0.1,
    )
    assert_same(decode_trajectory(encode_trajectory(trajectory)), trajectory)


def test_prompts_of_a_dialogue_are_stored_as_increments() -> None:
    """A dialogue of n turns holds n(n+1)/2 increments in its prompts; stored, it grows with n alone."""
    short, long = (len(encode_trajectory(make_trajectory(num_turns=turns, num_tokens=200))) for turns in (4, 32))
    assert long < 1.2 * 8 * short


def test_a_long_dialogue_crosses_processes_and_lies_in_memory_as_increments() -> None:
    trajectory = make_trajectory(num_turns=150, num_tokens=200)
    whole = sum(turn.prompt_token_ids.nbytes for turn in trajectory.turns)
    sent = pickle.dumps(trajectory)
    assert len(sent) < 0.05 * whole
    received = pickle.loads(sent)
    assert_same(received, trajectory)
    buffers = {id(turn.prompt_token_ids.base) for turn in received.turns}
    assert len(buffers) == 1 and not received.turns[3].prompt_token_ids.flags.writeable


def test_a_record_costs_few_bytes_a_token() -> None:
    trajectory = make_trajectory(num_turns=8, num_tokens=250)
    sampled = sum(len(turn.token_ids) for turn in trajectory.turns)
    assert len(encode_trajectory(trajectory)) / sampled < 7.0  # 4 of them are the logprob, which does not compress


def test_a_trajectory_of_a_newer_schema_is_refused_by_name() -> None:
    newer = make_trajectory("later")
    object.__setattr__(newer, "schema_version", 99)
    with pytest.raises(ValueError, match="'later' has schema_version 99"):
        decode_trajectory(encode_trajectory(newer))
