"""Advantages and losses against slow obvious loops and rlax."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import rlax
from hypothesis import given, settings
from hypothesis import strategies as st

from jaxagent.learner.logprobs import token_logprobs
from jaxagent.learner.ppo import compute_gae, kl_estimate, policy_loss, value_loss
from jaxagent.models.chunks import largest_divisor


def textbook_gae(rewards, values, gamma, gae_lambda):
    """One trajectory, policy tokens only; V after the last is 0."""
    advantages = np.zeros(len(rewards))
    for t in reversed(range(len(rewards))):
        last = t == len(rewards) - 1
        next_value = 0.0 if last else values[t + 1]
        next_advantage = 0.0 if last else advantages[t + 1]
        advantages[t] = rewards[t] + gamma * next_value - values[t] + gamma * gae_lambda * next_advantage
    return advantages


def random_row(rng, num_tokens=40):
    """Rewards, values, mask, segments of one packed row: two or three trajectories with tool tokens, then padding."""
    cuts = np.sort(rng.choice(np.arange(4, num_tokens - 2), size=2, replace=False))
    segment_ids = np.zeros(num_tokens, np.int32)
    segment_ids[: cuts[0]], segment_ids[cuts[0] : cuts[1]] = 1, 2
    if rng.random() < 0.5:
        segment_ids[cuts[1] : num_tokens - 1] = 3
    loss_mask = (rng.random(num_tokens) < 0.6) & (segment_ids > 0)
    rewards = np.where(loss_mask, rng.normal(size=num_tokens), 0).astype(np.float32)
    return rewards, rng.normal(size=num_tokens).astype(np.float32), loss_mask, segment_ids


@settings(max_examples=20, deadline=None)
@given(seed=st.integers(0, 10_000), gamma=st.sampled_from([1.0, 0.9]), gae_lambda=st.sampled_from([0.0, 0.95, 1.0]))
def test_gae_steps_over_tool_tokens_and_keeps_packed_trajectories_apart(seed, gamma, gae_lambda):
    rng = np.random.default_rng(seed)
    rows = [random_row(rng) for _ in range(3)]
    rewards, values, loss_mask, segment_ids = (np.stack(column) for column in zip(*rows, strict=True))
    advantages, returns = compute_gae(rewards, values, loss_mask, segment_ids, gamma=gamma, gae_lambda=gae_lambda)
    expected = np.zeros_like(rewards)
    for row in range(3):
        for segment in (1, 2, 3):
            chosen = loss_mask[row] & (segment_ids[row] == segment)
            expected[row, chosen] = textbook_gae(rewards[row, chosen], values[row, chosen], gamma, gae_lambda)
    np.testing.assert_allclose(advantages, expected, atol=1e-4)
    np.testing.assert_allclose(returns, np.where(loss_mask, expected + values, 0), atol=1e-4)


def test_gae_of_one_trajectory_matches_rlax():
    rng = np.random.default_rng(0)
    rewards, values = rng.normal(size=12).astype(np.float32), rng.normal(size=13).astype(np.float32)
    values[-1] = 0.0
    expected = rlax.truncated_generalized_advantage_estimation(
        jnp.asarray(rewards), jnp.ones(12), 0.95, jnp.asarray(values)
    )
    advantages, _ = compute_gae(
        rewards[None], values[None, :-1], np.ones((1, 12), bool), np.ones((1, 12), np.int32), gamma=1.0, gae_lambda=0.95
    )
    np.testing.assert_allclose(advantages[0], expected, rtol=1e-5, atol=1e-5)


def test_a_terminal_reward_neither_leaks_into_tool_tokens_nor_fades_across_them():
    loss_mask = np.array([[False, True, False, False, False, True, False]])
    rewards = np.where(np.arange(7) == 5, np.float32(0.75), np.float32(0))[None]
    zeros, ones = np.zeros((1, 7), np.float32), np.ones((1, 7), np.int32)
    advantages, _ = compute_gae(rewards, zeros, loss_mask, ones, gamma=1.0, gae_lambda=0.5)
    np.testing.assert_allclose(advantages[0], [0, 0.375, 0, 0, 0, 0.75, 0], atol=1e-7)


def surrogate_inputs(seed=0, shape=(2, 9)):
    rng = np.random.default_rng(seed)
    old = rng.normal(-1.0, 0.5, shape).astype(np.float32)
    logprobs = (old + rng.normal(0, 0.4, shape)).astype(np.float32)
    rollout = (old + rng.normal(0, 0.5, shape)).astype(np.float32)
    advantages = rng.normal(size=shape).astype(np.float32)
    loss_mask = rng.random(shape) < 0.7
    loss_weights = np.where(loss_mask, rng.random(shape), 0).astype(np.float32)
    return logprobs, old, rollout, advantages, loss_mask, loss_weights


def test_policy_loss_matches_a_token_by_token_loop():
    logprobs, old, rollout, advantages, loss_mask, loss_weights = surrogate_inputs()
    terms = policy_loss(
        logprobs, old, rollout, advantages, loss_mask, loss_weights, clip_low=0.2, clip_high=0.28, importance_cap=1.5
    )
    total = 0.0
    for index in np.ndindex(logprobs.shape):
        if loss_mask[index]:
            rho = np.exp(logprobs[index] - old[index])
            correction = min(np.exp(old[index] - rollout[index]), 1.5)
            clipped = min(max(rho, 0.8), 1.28)
            total += loss_weights[index] * correction * min(rho * advantages[index], clipped * advantages[index])
    np.testing.assert_allclose(terms.loss, -total, rtol=1e-5)
    assert float(terms.importance.max()) == 1.5


def test_policy_loss_and_gradient_match_rlax_when_the_clip_is_symmetric():
    logprobs, old, rollout, advantages, _, _ = surrogate_inputs(1, (1, 20))
    everywhere, weights = np.ones((1, 20), bool), np.full((1, 20), 1 / 20, np.float32)

    def ours(logprobs):
        return policy_loss(
            logprobs, old, rollout, advantages, everywhere, weights, clip_low=0.2, clip_high=0.2, importance_cap=None
        ).loss

    def theirs(logprobs):
        return rlax.clipped_surrogate_pg_loss(jnp.exp(logprobs - old)[0], jnp.asarray(advantages[0]), 0.2)

    np.testing.assert_allclose(ours(logprobs), theirs(logprobs), rtol=1e-5)
    np.testing.assert_allclose(jax.grad(ours)(logprobs), jax.grad(theirs)(logprobs), rtol=1e-4, atol=1e-7)


def test_no_gradient_flows_through_the_importance_weight():
    logprobs, old, rollout, advantages, loss_mask, loss_weights = surrogate_inputs(2)

    def loss(old_logprobs):
        return policy_loss(
            logprobs,
            old_logprobs,
            rollout,
            jnp.zeros_like(advantages) + 1.0,
            loss_mask,
            loss_weights,
            clip_low=0.2,
            clip_high=0.28,
            importance_cap=2.0,
        ).loss

    def uncorrected(old_logprobs, weight):
        return policy_loss(
            logprobs,
            old_logprobs,
            rollout,
            jnp.zeros_like(advantages) + 1.0,
            loss_mask,
            loss_weights * weight,
            clip_low=0.2,
            clip_high=0.28,
            importance_cap=None,
        ).loss

    weight = np.where(loss_mask, np.minimum(np.exp(old - rollout), 2.0), 1.0).astype(np.float32)
    np.testing.assert_allclose(jax.grad(loss)(old), jax.grad(uncorrected)(old, weight), rtol=1e-5)


def test_one_step_at_the_old_policy_is_the_plain_policy_gradient():
    logprobs, _, _, advantages, loss_mask, loss_weights = surrogate_inputs(3)

    def loss(logprobs):
        return policy_loss(
            logprobs,
            jax.lax.stop_gradient(logprobs),
            logprobs,
            advantages,
            loss_mask,
            loss_weights,
            clip_low=0.2,
            clip_high=0.28,
            importance_cap=2.0,
        ).loss

    np.testing.assert_allclose(jax.grad(loss)(logprobs), -loss_weights * advantages, rtol=1e-5, atol=1e-7)


def test_value_loss_matches_loops_with_and_without_clip_and_rlax():
    rng = np.random.default_rng(4)
    values, returns, old = (rng.normal(size=(2, 6)).astype(np.float32) for _ in range(3))
    weights = rng.random((2, 6)).astype(np.float32)
    plain = sum(0.5 * weights[i] * (values[i] - returns[i]) ** 2 for i in np.ndindex(2, 6))
    np.testing.assert_allclose(value_loss(values, returns, None, weights, value_clip=None), plain, rtol=1e-5)
    np.testing.assert_allclose(plain, np.sum(weights * np.asarray(rlax.l2_loss(values, returns))), rtol=1e-5)
    clipped = 0.0
    for i in np.ndindex(2, 6):
        near = old[i] + min(max(values[i] - old[i], -0.2), 0.2)
        clipped += 0.5 * weights[i] * max((values[i] - returns[i]) ** 2, (near - returns[i]) ** 2)
    np.testing.assert_allclose(value_loss(values, returns, old, weights, value_clip=0.2), clipped, rtol=1e-5)


def test_kl_estimate_is_zero_at_the_reference_and_positive_elsewhere():
    logprobs = np.full((1, 3), -1.0, np.float32)
    mask = np.array([[True, True, False]])
    reference = np.array([[-1.0, -2.0, 5.0]], np.float32)
    np.testing.assert_allclose(kl_estimate(logprobs, reference, mask), [[0, np.exp(-1) + 1 - 1, 0]], rtol=1e-6)


def test_a_wild_ratio_outside_the_mask_or_beyond_float_range_stays_finite():
    logprobs, old = np.array([[0.0, 900.0]], np.float32), np.array([[-500.0, -900.0]], np.float32)
    mask, weights = np.array([[True, False]]), np.array([[1.0, 0.0]], np.float32)
    terms = policy_loss(
        logprobs, old, old, np.ones((1, 2), np.float32), mask, weights, clip_low=0.2, clip_high=0.28, importance_cap=2.0
    )
    np.testing.assert_allclose(terms.loss, -1.28, rtol=1e-6)
    assert float(terms.ratio[0, 1]) == 1.0


@pytest.mark.parametrize("chunk_tokens", [2, 8, 10_000])
def test_chunked_logprobs_and_entropy_match_the_full_softmax(chunk_tokens):
    rng = np.random.default_rng(5)
    hidden = rng.normal(size=(2, 12, 4)).astype(np.float32)
    head = rng.normal(size=(4, 7)).astype(np.float32)
    token_ids = rng.integers(0, 7, (2, 12)).astype(np.int32)
    logprobs, entropy = token_logprobs(hidden, token_ids, head.T, temperature=0.7, chunk_tokens=chunk_tokens)
    assert not np.asarray(logprobs[:, 0]).any()
    for row in range(2):
        for t in range(1, 12):
            logits = hidden[row, t - 1] @ head / 0.7
            full = logits - np.log(np.exp(logits).sum())
            np.testing.assert_allclose(logprobs[row, t], full[token_ids[row, t]], rtol=1e-4, atol=1e-5)
            np.testing.assert_allclose(entropy[row, t], -(np.exp(full) * full).sum(), rtol=1e-4)


@pytest.mark.parametrize("chunk_tokens", [6, 10_000])
def test_the_gradient_is_that_of_the_full_softmax(chunk_tokens):
    rng = np.random.default_rng(6)
    hidden, head = rng.normal(size=(2, 12, 4)).astype(np.float32), rng.normal(size=(7, 4)).astype(np.float32)
    token_ids = rng.integers(0, 7, (2, 12)).astype(np.int32)
    weights = rng.normal(size=(2, 2, 11)).astype(np.float32)

    def ours(hidden, head):
        scored = token_logprobs(hidden, token_ids, head, temperature=0.7, chunk_tokens=chunk_tokens)
        return sum(jnp.sum(weight * array[:, 1:]) for weight, array in zip(weights, scored, strict=True))

    def full(hidden, head):
        logprobs = jax.nn.log_softmax(hidden[:, :-1] @ head.T / 0.7)
        picked = jnp.take_along_axis(logprobs, token_ids[:, 1:, None], axis=-1)[..., 0]
        entropy = -(jnp.exp(logprobs) * logprobs).sum(axis=-1)
        return jnp.sum(weights[0] * picked) + jnp.sum(weights[1] * entropy)

    with jax.default_matmul_precision("highest"):
        got, want = (jax.grad(loss, argnums=(0, 1))(hidden, head) for loss in (ours, full))
    for actual, expected in zip(got, want, strict=True):
        np.testing.assert_allclose(actual, expected, rtol=1e-4, atol=1e-5)


def test_in_bfloat16_products_are_rounded_and_sums_are_not():
    rng = np.random.default_rng(7)
    hidden = jnp.asarray(rng.normal(size=(1, 64, 16)), jnp.bfloat16)
    head = rng.normal(size=(50, 16)).astype(np.float32)
    token_ids = rng.integers(0, 50, (1, 64)).astype(np.int32)

    def loss(head, hidden):
        return token_logprobs(hidden, token_ids, head, temperature=1.0, chunk_tokens=8)[0].sum()

    d_head = jax.grad(loss)(head, hidden)
    exact = jax.grad(loss)(head.astype(jnp.bfloat16).astype(np.float32), hidden.astype(jnp.float32))
    assert d_head.dtype == jnp.float32
    np.testing.assert_allclose(d_head, exact, atol=0.01 * float(jnp.abs(exact).max()))


def test_chunks_divide_the_row():
    assert [largest_divisor(2048, at_most=n) for n in (256, 300, 4096, 1)] == [256, 256, 2048, 1]
