"""The learner as its driver sees it: stages, updates, what they report, and what they refuse."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx
from toys import VOCAB, log_stage, make_learner, make_trajectory, make_turn, ppo_stage, random_trajectories, weights_of

from jaxagent.batches.sequences import TrajectoryError, to_sequence
from jaxagent.config.stages import FineTuneStage, ValuePretrainStage
from jaxagent.learner.steps import NonFiniteError
from rollout.types import StopReason


@nnx.jit
def all_logits(actor, ids):
    return actor.logits(actor(ids, jnp.arange(64)[None], jnp.ones_like(ids)))[0]


def next_token_logprobs(learner, token_ids, temperature):
    ids = np.pad(np.asarray(token_ids, np.int32), (0, 64 - len(token_ids)))[None]
    return np.asarray(jax.nn.log_softmax(all_logits(learner._steps.actor.module(), ids) / temperature))


def as_sampled_by(learner, trajectory, temperature=1.0):
    """The trajectory with the logprobs that an engine without numerical error would have reported."""
    sequence = to_sequence(trajectory, row_tokens=64)
    full = next_token_logprobs(learner, sequence.token_ids, temperature)
    turns = []
    for turn in trajectory.turns:
        start = len(turn.prompt_token_ids)
        picked = [full[start + i - 1, token] for i, token in enumerate(turn.token_ids)]
        turns.append(dataclasses.replace(turn, logprobs=np.array(picked, np.float32)))
    return dataclasses.replace(trajectory, turns=turns)


def test_an_update_reports_what_happened(tmp_path):
    learner, stage = make_learner(tmp_path), ppo_stage()
    learner.start_stage(stage)
    trajectories = random_trajectories(6, rewards=(0.75,))
    trajectories[0] = dataclasses.replace(trajectories[0], stop_reason=StopReason.MAX_TOKENS)
    before = weights_of(learner)
    metrics = learner.ppo_update(trajectories, stage)
    assert metrics["mean_reward"] == 0.75 and metrics["outcome_correct"] == 1.0
    assert metrics["clipped_length_ratio"] == pytest.approx(1 / 6)
    assert metrics["mean_turns"] == 2 and metrics["staleness_max"] == 0 and metrics["staleness_0"] == 6
    assert metrics["tokens"] == sum(to_sequence(t, row_tokens=64).num_tokens for t in trajectories)
    assert metrics["mean_value"] == 0.0  # the value head starts at zero
    assert 0 < metrics["entropy"] <= np.log(VOCAB) + 1e-3
    assert metrics["ratio_p1"] == metrics["ratio_p99"] == 1.0 and metrics["clip_fraction"] == 0  # one step a batch
    assert metrics["actor_grad_norm"] > 0 and metrics["critic_grad_norm"] > 0 and metrics["tokens_per_s"] > 0
    assert learner.policy_version == 1
    assert any(not np.array_equal(before[name], value) for name, value in weights_of(learner).items())


@pytest.mark.parametrize("temperature", [1.0, 0.7])
def test_trainer_and_engine_agree_at_the_temperature_of_the_rollouts(tmp_path, temperature):
    learner, stage = make_learner(tmp_path), ppo_stage(temperature)
    learner.start_stage(stage)
    metrics = learner.ppo_update([as_sampled_by(learner, t, temperature) for t in random_trajectories(6)], stage)
    assert metrics["logprob_gap_max"] < 1e-4 and metrics["fresh_logprob_gap_max"] < 1e-4
    assert metrics["rollout_ratio_p99"] == pytest.approx(1, abs=1e-3) and metrics["importance_capped"] == 0


def test_stale_tokens_are_counted_and_kept_out_of_the_numerical_gap(tmp_path):
    learner, stage = make_learner(tmp_path), ppo_stage()
    learner.start_stage(stage)
    learner.ppo_update(random_trajectories(4, seed=1), stage)
    metrics = learner.ppo_update(
        random_trajectories(3, seed=2, version=0) + random_trajectories(1, seed=3, version=1), stage
    )
    assert (metrics["staleness_max"], metrics["staleness_1"], metrics["staleness_0"]) == (1, 3, 1)
    only_stale = learner.ppo_update(random_trajectories(3, seed=4, version=0), stage)
    assert only_stale["fresh_logprob_gap_max"] is None and only_stale["staleness_2"] == 3


def test_ppo_learns_which_answer_is_rewarded(tmp_path):
    learner, stage = make_learner(tmp_path), ppo_stage(rate=3e-2)
    learner.start_stage(stage)
    rng, prompt = np.random.default_rng(0), [1, 2, 3]
    chosen = []
    for update in range(12):
        logprobs = next_token_logprobs(learner, prompt, 1.0)[2]
        answers = rng.choice(VOCAB, size=16, p=np.exp(logprobs) / np.exp(logprobs).sum())
        batch = [
            make_trajectory(
                [make_turn(prompt, [answer], update, logprobs[[answer]])],
                f"{update}-{index}",
                1.0 if answer < 8 else -1.0,
            )
            for index, answer in enumerate(answers)
        ]
        chosen.append(learner.ppo_update(batch, stage)["mean_reward"])
    assert np.mean(chosen[:2]) < 0 < 0.8 < np.mean(chosen[-2:])


def test_several_minibatches_clip_against_the_policy_of_the_updates_start(tmp_path):
    learner = make_learner(
        tmp_path,
        ppo={
            "minibatches": 2,
            "critic_updates": 2,
            "value_clip": 0.2,
            "kl_coef": 0.1,
            "normalize_advantages": True,
            "clip_low": 0.01,
            "clip_high": 0.01,
        },
    )
    stage = ppo_stage(rate=3e-2)
    learner.start_stage(stage)
    metrics = learner.ppo_update(random_trajectories(8), stage)
    assert metrics["approx_kl"] > 0 and 0 < metrics["clip_fraction"] < 1 and metrics["ratio_p99"] > 1.01
    assert metrics["advantages_mean"] == pytest.approx(0, abs=1e-5)
    assert metrics["advantages_std"] == pytest.approx(1, abs=1e-3)
    assert metrics["ref_kl"] > 0  # of the second minibatch; the first still is the reference
    assert learner.policy_version == 1


def test_finetuning_takes_every_trajectory_once_an_epoch_and_lowers_the_loss(tmp_path):
    learner, stage = make_learner(tmp_path), log_stage(FineTuneStage, epochs=6)
    learner.start_stage(stage)
    trajectories = random_trajectories(8)
    metrics = learner.finetune_updates(trajectories, stage)
    assert learner.finetune_updates(trajectories, stage) == []
    assert [m["epoch"] for m in metrics] == [epoch for epoch in range(6) for _ in range(3)]
    for epoch in range(6):
        assert sum(m["tokens"] for m in metrics if m["epoch"] == epoch) == sum(
            to_sequence(t, row_tokens=64).num_tokens for t in trajectories
        )
    assert np.mean([m["nll"] for m in metrics[-3:]]) < 0.95 * np.mean([m["nll"] for m in metrics[:3]])
    assert learner.policy_version == 18


def test_updates_one_by_one_are_the_updates_in_one_call(tmp_path):
    trajectories, stage = random_trajectories(8), log_stage(FineTuneStage)
    at_once, stepwise = make_learner(tmp_path), make_learner(tmp_path)
    at_once.start_stage(stage)
    stepwise.start_stage(stage)
    whole = at_once.finetune_updates(trajectories, stage)
    single = []
    while records := stepwise.finetune_updates(trajectories, stage, max_updates=1):
        single += records
    assert [m["nll"] for m in single] == [m["nll"] for m in whole]


def test_value_pretraining_explains_the_returns_and_leaves_the_actor_alone(tmp_path):
    learner, stage = make_learner(tmp_path), log_stage(ValuePretrainStage, epochs=25, size=8)
    learner.start_stage(stage)
    before = weights_of(learner)
    metrics = learner.value_updates(random_trajectories(8, rewards=(-1.0, 3.0)), stage)
    assert metrics[-1]["explained_variance"] > 0.5 > metrics[0]["explained_variance"]
    assert learner.policy_version == 0
    for name, value in weights_of(learner).items():
        np.testing.assert_array_equal(value, before[name])


def test_value_targets_stay_within_an_epoch_and_follow_the_critic_in_the_next(tmp_path):
    learner, stage = make_learner(tmp_path), log_stage(ValuePretrainStage, epochs=2, size=3)
    learner.start_stage(stage)
    trajectories, targets = random_trajectories(6), []
    for _ in range(4):
        learner.value_updates(trajectories, stage, max_updates=1)
        targets.append(np.concatenate(learner._value_targets))
    np.testing.assert_array_equal(targets[0], targets[1])
    assert not np.array_equal(targets[1], targets[2])
    np.testing.assert_array_equal(targets[2], targets[3])


def test_the_critic_begins_as_a_copy_of_the_actor_when_it_is_first_needed(tmp_path):
    learner = make_learner(tmp_path)
    finetune = log_stage(FineTuneStage, epochs=1)
    learner.start_stage(finetune)
    learner.finetune_updates(random_trajectories(3), finetune)
    learner.start_stage(ppo_stage())
    actor, critic = learner._steps.actor.module(), learner._steps.critic.module()
    np.testing.assert_array_equal(critic.backbone.embedding[...], actor.embedding[...])
    learner.ppo_update(random_trajectories(4), ppo_stage())
    learner.start_stage(ppo_stage())
    assert not np.array_equal(
        learner._steps.critic.module().backbone.embedding[...], learner._steps.actor.module().embedding[...]
    )


def test_a_whole_schedule_compiles_each_function_once(tmp_path):
    learner = make_learner(tmp_path, row_tokens=60)
    for stage, kind in [
        (log_stage(FineTuneStage), "finetune_updates"),
        (log_stage(ValuePretrainStage), "value_updates"),
    ]:
        learner.start_stage(stage)
        getattr(learner, kind)(random_trajectories(5), stage)
    for seed in range(3):
        learner.start_stage(ppo_stage())
        learner.ppo_update(random_trajectories(5 + seed, seed=seed), ppo_stage())
    assert learner._steps.actor.num_compilations() == {"finetune": 1, "ppo": 1, "logprobs": 0}
    assert learner._steps.critic.num_compilations() == {"value": 1, "targets": 1}


def test_a_trajectory_that_cannot_be_trained_on_stops_the_update_before_anything_changes(tmp_path):
    learner, stage = make_learner(tmp_path), ppo_stage()
    learner.start_stage(stage)
    expert = make_trajectory([make_turn([1], [2], version=-1)], "expert-1")
    before = weights_of(learner)
    with pytest.raises(TrajectoryError, match="expert-1.*no policy version"):
        learner.ppo_update([*random_trajectories(3), expert], stage)
    assert learner.policy_version == 0
    for name, value in weights_of(learner).items():
        np.testing.assert_array_equal(value, before[name])


def test_steps_that_are_not_finite_are_skipped_and_end_the_run_when_they_go_on(tmp_path):
    learner, stage = make_learner(tmp_path / "dump", max_nonfinite_steps=3), ppo_stage()
    learner.start_stage(stage)
    wild = random_trajectories(4, rewards=(float("inf"),))
    before = weights_of(learner)
    metrics = learner.ppo_update(wild, stage)  # a critic and an actor step
    assert metrics["actor_skipped_steps"] == metrics["critic_skipped_steps"] == 1
    for name, value in weights_of(learner).items():
        np.testing.assert_array_equal(value, before[name])
    with pytest.raises(NonFiniteError, match="3 steps in a row.*learner.max_nonfinite_steps=3.*nonfinite_critic.npz"):
        learner.ppo_update(wild, stage)
    with np.load(tmp_path / "dump" / "nonfinite_critic.npz") as dump:
        assert np.isinf(dump["rewards"]).any() and "t0-0" in str(dump["about"])


def test_misuse_is_told_what_to_do(tmp_path):
    learner = make_learner(tmp_path)
    with pytest.raises(ValueError, match="call start_stage first"):
        learner.ppo_update(random_trajectories(2), ppo_stage())
    with pytest.raises(ValueError, match="temperature=0: greedy"):
        learner.start_stage(ppo_stage(temperature=0))
    stage = log_stage(FineTuneStage)
    learner.start_stage(stage)
    learner.finetune_updates(random_trajectories(4), stage, max_updates=1)
    with pytest.raises(ValueError, match="began on other trajectories"):
        learner.finetune_updates(random_trajectories(5), stage)
    with pytest.raises(ValueError, match="at least one trajectory"):
        learner.finetune_updates([], stage)
