"""Trajectories -> sequences -> packed rows: exactly the sampled tokens are trained, each once."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from jaxagent.batches.packing import MOST_SEGMENTS, assign_rows, choose_row_tokens, pack
from jaxagent.batches.rewards import training_reward
from jaxagent.batches.sequences import TrajectoryError, screen, to_sequence
from rollout.types import StopReason, Trajectory, Turn
from sandbox.types import Judgement, Outcome


def judgement(reward=1.0, **times):
    return Judgement(
        outcome=Outcome.CORRECT if reward is None or reward > 0 else Outcome.WRONG, reward=reward, message="", **times
    )


def make_turn(prompt, output, version=0, **fields):
    return Turn(
        prompt_token_ids=np.array(prompt, np.int32),
        token_ids=np.array(output, np.int32),
        logprobs=-np.arange(1, len(output) + 1, dtype=np.float32),
        policy_versions=np.full(len(output), version, np.int32),
        text="",
        **fields,
    )


def make_trajectory(turns, name="t", reward=1.0, stop_reason=StopReason.FINISHED, **fields):
    return Trajectory(
        trajectory_id=name,
        task_id="task",
        sample_index=0,
        stage="ppo",
        seed=0,
        turns=turns,
        judgement=judgement(reward),
        stop_reason=stop_reason,
        **fields,
    )


TWO_TURNS = [make_turn([1, 2, 3], [4, 5], version=3), make_turn([1, 2, 3, 4, 5, 90, 91], [6, 7, 8], version=4)]


def test_only_sampled_tokens_are_trained_and_each_turn_finds_its_own():
    sequence = to_sequence(make_trajectory(TWO_TURNS), row_tokens=16)
    assert sequence.token_ids.tolist() == [1, 2, 3, 4, 5, 90, 91, 6, 7, 8]
    assert np.flatnonzero(sequence.loss_mask).tolist() == [3, 4, 7, 8, 9]
    assert sequence.rollout_logprobs.tolist() == [0, 0, 0, -1, -2, 0, 0, -1, -2, -3]
    assert sequence.policy_versions.tolist() == [-1, -1, -1, 3, 3, -1, -1, 4, 4, 4]
    assert sequence.oldest_version == 3 and not sequence.truncated


BROKEN = {
    "doesn't start with": [make_turn([1, 2, 3], [4, 5]), make_turn([1, 2, 3, 4, 99, 90], [6])],
    "after turn 0": [make_turn([1, 2, 3], [4, 5]), make_turn([1, 2], [6, 7])],
    "no turns": [],
    "sampled no token": [make_turn([1, 2], [])],
    "empty prompt": [make_turn([], [1, 2])],
    "more than learner.row_tokens=16": [make_turn(range(10), range(10))],
    "vocabulary": [make_turn([1], [101])],
    "no policy version": [make_turn([1], [2], version=-1)],
    "logprobs and": [
        Turn(
            prompt_token_ids=np.array([1]),
            token_ids=np.array([2, 3]),
            logprobs=np.array([-1.0]),
            policy_versions=np.array([0, 0]),
            text="",
        )
    ],
    "aren't all finite": [
        Turn(
            prompt_token_ids=np.array([1]),
            token_ids=np.array([2]),
            logprobs=np.array([-np.inf]),
            policy_versions=np.array([0]),
            text="",
        )
    ],
}


@pytest.mark.parametrize("reason", BROKEN)
def test_a_trajectory_that_cannot_be_trained_on_is_dropped_with_its_reason(reason):
    bad, good = make_trajectory(BROKEN[reason], name="bad"), make_trajectory(TWO_TURNS, name="good")
    with pytest.raises(TrajectoryError, match="'bad'.*" + reason):
        to_sequence(bad, row_tokens=16, vocab_size=100)
    kept, dropped = screen([bad, good], row_tokens=16, vocab_size=100)
    assert kept == [good] and list(dropped) == ["bad"] and reason in dropped["bad"]


def test_an_experts_tokens_are_fine_where_no_logprobs_are_needed():
    expert = make_trajectory([make_turn([1], [2, 3], version=-1)])
    assert to_sequence(expert, row_tokens=8, need_logprobs=False).num_policy_tokens == 2


def test_a_full_context_and_a_cut_reply_count_as_truncated():
    full = make_trajectory([make_turn([1], [2])], stop_reason=StopReason.MAX_TOKENS)
    cut = make_trajectory([make_turn([1], [2], truncated=True)])
    assert to_sequence(full, row_tokens=8).truncated and to_sequence(cut, row_tokens=8).truncated


def random_sequences(rng, count, row_tokens):
    sequences = []
    for index in range(count):
        prompt = rng.integers(0, 50, rng.integers(1, row_tokens // 2)).tolist()
        first = rng.integers(0, 50, rng.integers(1, row_tokens // 4)).tolist()
        trajectory = make_trajectory([make_turn(prompt, first)], name=str(index))
        sequences.append(to_sequence(trajectory, row_tokens=row_tokens))
    return sequences


@settings(max_examples=25, deadline=None)
@given(seed=st.integers(0, 10_000), count=st.integers(1, 12))
def test_packing_keeps_every_token_once_in_whole_segments(seed, count):
    rng = np.random.default_rng(seed)
    sequences = random_sequences(rng, count, 32)
    rewards = rng.normal(size=count).astype(np.float32)
    packed = pack(sequences, rewards.tolist(), row_tokens=32, rows_per_microbatch=2)
    batch = packed.batch
    for sequence, (row, start, end), reward in zip(sequences, packed.places, rewards, strict=True):
        flat = [field.reshape(-1, 32)[row, start:end] for field in batch]
        token_ids, positions, segment_ids, loss_mask, weights, logprobs, reward_row = flat
        np.testing.assert_array_equal(token_ids, sequence.token_ids)
        np.testing.assert_array_equal(positions, np.arange(end - start))
        assert len(set(segment_ids.tolist())) == 1 and segment_ids[0] > 0
        np.testing.assert_array_equal(loss_mask, sequence.loss_mask)
        np.testing.assert_array_equal(logprobs, sequence.rollout_logprobs)
        np.testing.assert_allclose(weights.sum(), 1 / count, rtol=1e-5)
        last = np.flatnonzero(sequence.loss_mask)[-1]
        assert reward_row[last] == reward and np.count_nonzero(reward_row) == 1
    assert batch.loss_mask.sum() == sum(sequence.num_policy_tokens for sequence in sequences)
    assert (batch.segment_ids > 0).sum() == sum(sequence.num_tokens for sequence in sequences)
    for row in batch.segment_ids.reshape(-1, 32):
        used = np.count_nonzero(row)
        assert (np.diff(row[:used]) >= 0).all() and not row[used:].any()
    assert not batch.segment_ids[packed.num_microbatches :].any()


def test_a_fractional_reward_stays_a_fraction():
    sequence = to_sequence(make_trajectory([make_turn([1, 2], [3, 4])]), row_tokens=8)
    batch = pack([sequence], [0.75], row_tokens=8, rows_per_microbatch=1).batch
    assert batch.rewards.dtype == np.float32 and batch.rewards[0, 0].tolist() == [0, 0, 0, 0.75, 0, 0, 0, 0]


def test_token_mean_weights_every_token_alike():
    rng = np.random.default_rng(0)
    sequences = random_sequences(rng, 5, 32)
    batch = pack(sequences, [0.0] * 5, row_tokens=32, rows_per_microbatch=2, aggregation="token_mean").batch
    total = sum(sequence.num_policy_tokens for sequence in sequences)
    np.testing.assert_allclose(batch.loss_weights[batch.loss_mask], 1 / total, rtol=1e-6)
    assert not batch.loss_weights[~batch.loss_mask].any()


def test_gather_undoes_scatter():
    rng = np.random.default_rng(1)
    sequences = random_sequences(rng, 7, 32)
    packed = pack(sequences, [0.0] * 7, row_tokens=32, rows_per_microbatch=2)
    values = [rng.normal(size=sequence.num_tokens).astype(np.float32) for sequence in sequences]
    for expected, actual in zip(values, packed.gather(packed.scatter(values)), strict=True):
        np.testing.assert_array_equal(actual, expected)


def test_first_fit_decreasing_fills_gaps():
    assert assign_rows([3, 8, 5, 2, 7], row_tokens=10) == [[1, 3], [4, 0], [2]]
    with pytest.raises(ValueError, match="11 tokens does not fit a row of 10"):
        assign_rows([11], row_tokens=10)


def test_a_row_holds_no_more_trajectories_than_attention_has_places_for():
    rows = assign_rows([5] * (2 * MOST_SEGMENTS + 1), row_tokens=1000)
    assert [len(row) for row in rows] == [MOST_SEGMENTS, MOST_SEGMENTS, 1]
    assert len(assign_rows([5] * MOST_SEGMENTS, row_tokens=5 * MOST_SEGMENTS)) == 1


def test_short_trajectories_get_short_rows():
    assert [choose_row_tokens(n, row_tokens=2048) for n in (1, 512, 513, 1025, 2048)] == [512, 512, 1024, 2048, 2048]
    with pytest.raises(ValueError, match="learner.row_tokens=2048"):
        choose_row_tokens(2049, row_tokens=2048)


def test_few_batch_shapes_occur():
    rng = np.random.default_rng(2)
    shapes = {
        pack(
            random_sequences(rng, count, 32), [0.0] * count, row_tokens=32, rows_per_microbatch=2
        ).batch.token_ids.shape
        for count in range(1, 16)
    }
    assert shapes == {(8, 2, 32)}


def test_rewards_come_from_the_final_or_the_best_judgement():
    turns = [
        make_turn([1], [2], judgement=judgement(3.0, candidate_ms=1.0, compile_ms=4.0)),
        make_turn([1, 2, 9], [3], judgement=judgement(None)),
    ]
    trajectory = make_trajectory(turns, reward=-1.0)
    assert training_reward(trajectory) == -1.0
    assert training_reward(trajectory, source="best") == 3.0
    assert training_reward(trajectory, kind="raw_speedup", source="best") == 4.0
    assert training_reward(trajectory, kind="raw_speedup") == -1.0


def test_a_final_judgement_without_a_time_is_an_error():
    with pytest.raises(ValueError, match="'t'.*timed=True"):
        training_reward(make_trajectory([make_turn([1], [2])], reward=None))
