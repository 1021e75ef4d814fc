"""A learner on two GPUs computes what it does on one, on every axis of the mesh.

Run with JAX_PLATFORMS=cuda: the other tests run on the CPU wherever they are.
"""

from __future__ import annotations

import dataclasses

import jax
import numpy as np
import pytest
from toys import TINY, make_learner, ppo_stage, random_trajectories, weights_of

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(
        jax.default_backend() != "gpu" or jax.device_count() < 2,
        reason="JAX sees fewer than two GPUs; JAX_PLATFORMS=cuda where there are",
    ),
]
AXES = ["data", "fsdp", "tensor", "context"]
# What cuDNN's attention takes, and two key/value heads to part.
WIDE = dataclasses.replace(TINY, hidden_size=128, num_heads=4, num_kv_heads=2, head_dim=64)


def trained(folder, **settings):
    """Metrics of two PPO updates, and what they have changed every weight by."""
    with jax.default_matmul_precision("highest"):
        learner, stage = make_learner(folder, config=WIDE, **settings), ppo_stage(rate=1e-3)
        before = weights_of(learner)
        learner.start_stage(stage)
        records = [learner.ppo_update(random_trajectories(8, seed=seed), stage) for seed in range(2)]
        return records, {name: weight - before[name] for name, weight in weights_of(learner).items()}


def assert_alike(got, want, *, metrics, changes):
    """Metrics within `metrics` relative; changes of weights within `changes` of their norm. Elements of hardly any
    gradient may go either way: Adam makes steps of one size of all."""
    (records, moved), (expected_records, expected_moves) = got, want
    for record, expected in zip(records, expected_records, strict=True):
        for name in ("actor_loss", "critic_loss", "actor_grad_norm", "critic_grad_norm", "entropy"):
            np.testing.assert_allclose(record[name], expected[name], rtol=metrics, atol=1e-5, err_msg=name)
    for name, expected in expected_moves.items():
        difference = np.linalg.norm((moved[name] - expected).astype(np.float32))
        share = difference / np.linalg.norm(expected.astype(np.float32))
        assert share <= changes, f"{name}: {share:.4f} of its change"


@pytest.fixture(scope="module")
def on_one(tmp_path_factory):
    return trained(tmp_path_factory.mktemp("one"))


@pytest.mark.parametrize("axis", AXES)
def test_two_gpus_train_as_one_in_float32(tmp_path, on_one, axis):
    assert_alike(trained(tmp_path, mesh={axis: 2}), on_one, metrics=1e-3, changes=0.02)


@pytest.fixture(scope="module")
def on_one_in_bfloat16(tmp_path_factory):
    return trained(tmp_path_factory.mktemp("one_bfloat16"), compute_dtype="bfloat16", row_tokens=128)


@pytest.mark.parametrize("axis", AXES)
def test_two_gpus_train_as_one_with_the_fused_attention_of_bfloat16(tmp_path, on_one_in_bfloat16, axis):
    got = trained(tmp_path, mesh={axis: 2}, compute_dtype="bfloat16", row_tokens=128)
    assert_alike(got, on_one_in_bfloat16, metrics=0.05, changes=0.3)
