"""The mesh: what can't work is refused, and where arrays lie changes no number."""

import dataclasses
import functools
from pathlib import Path

import jax
import numpy as np
import pytest
from flax import nnx
from jax.sharding import PartitionSpec
from toys import TINY, log_stage, make_learner, ppo_stage, random_trajectories, tiny_actor, weights_of

from jaxagent.config.learner import MeshConfig
from jaxagent.config.load import ConfigError
from jaxagent.config.stages import FineTuneStage, ValuePretrainStage
from jaxagent.mesh.sharding import make_mesh, param_shardings
from jaxagent.models.config import RopeConfig
from jaxagent.models.value import Critic


def updated(tmp_path, mesh):
    learner = make_learner(tmp_path, mesh=mesh)
    records = []
    stage = ppo_stage()
    learner.start_stage(stage)
    records += [learner.ppo_update(random_trajectories(6, seed=seed), stage) for seed in range(2)]
    for stage, name in [
        (log_stage(FineTuneStage, epochs=1), "finetune_updates"),
        (log_stage(ValuePretrainStage, epochs=1), "value_updates"),
    ]:
        learner.start_stage(stage)
        records += getattr(learner, name)(random_trajectories(6), stage)
    return learner, records


@pytest.fixture(scope="module")
def on_one_device(tmp_path_factory):
    return updated(tmp_path_factory.mktemp("one"), {})


@pytest.mark.parametrize("mesh", [{"fsdp": 2}, {"data": 2}, {"tensor": 2}], ids=str)
def test_two_devices_compute_what_one_computes(tmp_path, on_one_device, mesh):
    expected_learner, expected = on_one_device
    learner, records = updated(tmp_path, mesh)
    for got, want in zip(records, expected, strict=True):
        assert got.keys() == want.keys()
        for name in want.keys() - {"seconds", "tokens_per_s"}:
            assert (got[name] is None) == (want[name] is None), name
            if want[name] is None:
                continue
            np.testing.assert_allclose(got[name], want[name], rtol=5e-3, atol=1e-4, err_msg=name)
    want = weights_of(expected_learner)
    for name, value in weights_of(learner).items():
        np.testing.assert_allclose(value, want[name], rtol=1e-2, atol=2e-3, err_msg=name)


MOE = dataclasses.replace(
    TINY, family="qwen3_moe", qk_norm=True, num_experts=8, experts_per_token=2, intermediate_size=16
)
SLIDING = dataclasses.replace(
    TINY, family="gemma3_text", num_layers=3, sliding_window=6, sliding_layers=(True, False, True), norm_offset=1.0,
    sliding_rope=RopeConfig(theta=100.0), sandwich_norms=True, activation="gelu_tanh", embedding_scale=4.0,
)  # fmt: skip
DENSE_MESHES = [{"data": 8}, {"fsdp": 8}, {"tensor": 8}, {"data": 2, "fsdp": 4}, {"fsdp": 4, "tensor": 2},
                {"data": 4, "tensor": 2}, {"context": 8}, {"context": 2, "fsdp": 4}, {"context": 4, "tensor": 2},
                {"context": 2, "data": 4}]  # fmt: skip
MOE_MESHES = [{"expert": 8}, {"fsdp": 8}, {"data": 2, "expert": 4}, {"fsdp": 2, "expert": 4},
              {"tensor": 2, "expert": 4}, {"fsdp": 4, "tensor": 2}, {"context": 4, "expert": 2}]  # fmt: skip
CASES = [("dense", TINY, mesh) for mesh in DENSE_MESHES]
CASES += [("experts", MOE, mesh) for mesh in MOE_MESHES]
CASES += [("sliding", SLIDING, {"fsdp": 2, "tensor": 2, "data": 2}), ("sliding", SLIDING, {"context": 4, "data": 2})]


@functools.cache
def one_update(config, mesh):
    """(metrics of an update of the actor, weights after it) on the mesh, given as pairs."""
    settings = {"rows_per_microbatch": 8, "router_aux_coef": 0.1, "mesh": dict(mesh), "row_tokens": 64}
    learner, stage = make_learner(Path(), config=config, **settings), log_stage(FineTuneStage, size=9)
    learner.start_stage(stage)
    (metrics,) = learner.finetune_updates(random_trajectories(9), stage, max_updates=1)
    return metrics, weights_of(learner)


@pytest.mark.parametrize(("name", "config", "mesh"), CASES, ids=[f"{name} {mesh}" for name, _, mesh in CASES])
def test_eight_devices_compute_what_one_computes(name, config, mesh):
    expected_metrics, expected_weights = one_update(config, ())
    metrics, weights = one_update(config, tuple(mesh.items()))
    for key in ("actor_loss", "actor_grad_norm", "nll", "entropy"):
        np.testing.assert_allclose(metrics[key], expected_metrics[key], rtol=1e-4, err_msg=key)
    for key, value in weights.items():
        # One step of Adam moves a weight by the learning rate, and by its sign where a gradient is as good as zero.
        apart = np.abs(value - expected_weights[key]) > 1e-3
        assert apart.mean() < 0.02, key


@pytest.mark.parametrize("mesh", [{"expert": 4, "tensor": 2}, {"fsdp": 2, "expert": 4}], ids=str)
def test_recorded_routing_is_replayed_on_a_mesh_as_on_one_device(mesh):
    rng = np.random.default_rng(0)
    token_ids, segment_ids = rng.integers(0, 32, (8, 12)).astype(np.int32), np.ones((8, 12), np.int32)
    positions = np.tile(np.arange(12, dtype=np.int32), (8, 1))
    routing = np.stack([rng.permutation(8)[:2] for _ in range(8 * 12 * 2)]).reshape(8, 12, 2, 2).astype(np.int32)
    routing[:, :3] = -1
    actor = tiny_actor(config=MOE)
    call = nnx.jit(lambda actor: actor(token_ids, positions, segment_ids, routing_BTLK=routing))
    alone = call(actor)
    with jax.set_mesh(make_mesh(MeshConfig(**mesh), rows_per_microbatch=8)):
        together = call(actor)
    np.testing.assert_allclose(together, alone, atol=1e-5)


def test_experts_lie_on_the_devices_of_their_axis():
    learner = make_learner(Path(), config=MOE, mesh={"expert": 4, "tensor": 2}, rows_per_microbatch=8)
    gate = learner._steps.actor.params["layers"]["mlp"]["gate"].get_value()
    assert {shard.data.shape for shard in gate.addressable_shards} == {(2, 2, 16, 8)}


def test_experts_that_the_mesh_does_not_divide_are_refused_with_the_next_step():
    config = dataclasses.replace(MOE, num_experts=6)
    learner, stage = make_learner(Path(), config=config, mesh={"expert": 4}, rows_per_microbatch=4), ppo_stage()
    learner.start_stage(stage)
    with pytest.raises(ValueError, match="learner.mesh.expert=4 must divide the model's 6 experts; set it to a"):
        learner.ppo_update(random_trajectories(3), stage)


def test_fsdp_splits_parameters_and_their_moments(tmp_path):
    learner = make_learner(tmp_path, mesh={"fsdp": 2})
    state = learner._steps.actor.state
    for tree in (state.params, state.opt_state.inner_state[1].mu, state.opt_state.inner_state[1].nu):
        embedding = tree["embedding"].get_value()
        assert embedding.sharding.spec == PartitionSpec("tensor", "fsdp")
        assert {shard.data.shape for shard in embedding.addressable_shards} == {(32, 8)}
    assert state.num_steps.sharding.is_fully_replicated


def test_every_parameter_of_actor_and_critic_has_a_place_on_a_full_mesh():
    mesh = make_mesh(MeshConfig(fsdp=2), rows_per_microbatch=2)
    for module in (tiny_actor(), Critic.from_decoder(tiny_actor())):
        params = nnx.split(module, nnx.Param)[1]
        specs = [sharding.spec for sharding in jax.tree.leaves(param_shardings(params, mesh))]
        split = sum("fsdp" in spec for spec in specs)
        assert split >= len(specs) - 1  # all but the value head's bias have a hidden axis


def test_a_parameter_without_axis_names_is_split_along_its_longest_axis():
    mesh = make_mesh(MeshConfig(fsdp=2), rows_per_microbatch=2)
    params = {
        "wide": nnx.Param(np.zeros((4, 6), np.float32)),
        "odd": nnx.Param(np.zeros((3, 5), np.float32)),
        "vector": nnx.Param(np.zeros(8, np.float32)),
    }
    specs = {name: leaf.get_value().spec for name, leaf in param_shardings(params, mesh).items()}
    assert specs == {"wide": PartitionSpec(None, "fsdp"), "odd": PartitionSpec(), "vector": PartitionSpec()}


def test_an_unknown_axis_name_is_an_error():
    mesh = make_mesh(MeshConfig(), rows_per_microbatch=1)
    with pytest.raises(ValueError, match="'sideways' has no rule.*embed"):
        param_shardings({"w": nnx.Param(np.zeros((2, 2), np.float32), logical_axes=("embed", "sideways"))}, mesh)


@pytest.mark.parametrize(
    ("mesh", "rows", "message"),
    [
        ({"fsdp": 8, "data": 2}, 16, r"learner.mesh \(data=2, fsdp=8\) needs 16 devices and JAX sees 8"),
        ({"fsdp": 2}, 3, "learner.rows_per_microbatch=3 must be a multiple of mesh.data x mesh.fsdp x mesh.expert = 2"),
    ],
)
def test_a_mesh_that_cannot_work_is_refused_with_the_next_step(mesh, rows, message):
    with pytest.raises(ConfigError, match=message):
        make_mesh(MeshConfig(**mesh), rows_per_microbatch=rows)
