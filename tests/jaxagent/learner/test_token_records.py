"""What is kept of single tokens for people to look at: those of the trajectories, in their order."""

from __future__ import annotations

import numpy as np
from toys import make_learner, random_trajectories

from jaxagent.config.stages import PPOStage
from jaxagent.run.token_records import read_token_records, write_token_records


def test_records_have_one_entry_a_sampled_token_and_agree_with_the_metrics(tmp_path):
    learner = make_learner(tmp_path, ppo={"minibatches": 2, "normalize_advantages": True})
    stage = PPOStage.model_validate({
        "name": "ppo", "kind": "ppo", "updates": 2, "trajectories_per_update": 4,
        "actor_optimizer": {"learning_rate": 0.05}, "critic_optimizer": {"learning_rate": 0.01},
    })  # fmt: skip
    learner.start_stage(stage)
    trajectories = random_trajectories(4)
    kept = []
    metrics = learner.ppo_update(trajectories, stage, on_tokens=kept.append)
    (records,) = kept
    assert set(records) == {trajectory.trajectory_id for trajectory in trajectories}
    for trajectory in trajectories:
        tokens = sum(len(turn.token_ids) for turn in trajectory.turns)
        assert {name: len(values) for name, values in records[trajectory.trajectory_id].items()} == {
            "ratio": tokens, "advantage": tokens, "value": tokens
        }  # fmt: skip
    ratios = np.concatenate([record["ratio"] for record in records.values()])
    np.testing.assert_allclose(np.percentile(ratios, [1, 99]), [metrics["ratio_p1"], metrics["ratio_p99"]], rtol=1e-3)
    assert ratios.std() > 0, "the second minibatch saw weights that the first one had moved"
    advantages = np.concatenate([record["advantage"] for record in records.values()])
    np.testing.assert_allclose([advantages.mean(), advantages.std()], [0, 1], atol=1e-3)


def test_a_repeated_update_replaces_its_file_and_numbers_that_are_none_are_null(tmp_path):
    first = write_token_records(tmp_path / "tokens", "ppo", 3, {"a": {"ratio": [1.0]}})
    assert write_token_records(tmp_path / "tokens", "ppo", 3, {"b": {"ratio": [None]}}) == first
    assert read_token_records(tmp_path / "tokens") == {"b": {"ratio": [None]}}
    assert [path.name for path in (tmp_path / "tokens").iterdir()] == ["ppo-000003.json"]
