"""Portable checkpoints: few small files, the same bits after a resume, and no confusion about what they belong to."""

from __future__ import annotations

import json
from pathlib import Path

import jax
import numpy as np
import pytest
from flax import nnx
from toys import log_stage, make_learner, ppo_stage, random_trajectories, tiny_actor

from jaxagent.config.learner import LoraConfig
from jaxagent.config.load import load_config
from jaxagent.config.stages import ValuePretrainStage
from jaxagent.learner.checkpoint import CheckpointError
from jaxagent.learner.network import IDLE_OPTIMIZER
from jaxagent.learner.portable import MAX_FILE_BYTES, MAX_FILES, PortableCheckpoint
from jaxagent.learner.update import init_train_state
from jaxagent.models.config import DecoderConfig
from jaxagent.models.decoder import abstract_decoder
from jaxagent.models.lora import add_adapters, trainable
from jaxagent.models.value import Critic

LORA = LoraConfig(rank=2, alpha=4.0)


def adapter_learner(tmp_path, *, seed=0, **settings):
    return make_learner(tmp_path, actor=add_adapters(tiny_actor(seed=seed), LORA), **settings)


def everything(learner):
    return [np.asarray(leaf) for leaf in jax.tree.leaves(learner._steps.arrays())]


def test_four_updates_equal_two_and_a_resume_and_two_bit_for_bit(tmp_path):
    stage = ppo_stage()
    straight, first = (adapter_learner(tmp_path, ppo={"kl_coef": 0.1}) for _ in range(2))
    for learner, updates in ((straight, 4), (first, 2)):
        learner.start_stage(stage)
        for seed in range(updates):
            learner.ppo_update(random_trajectories(5, seed=seed), stage)
    first.save(PortableCheckpoint(tmp_path / "portable"), {"cursor": "segment-3:128"})
    resumed = adapter_learner(tmp_path, ppo={"kl_coef": 0.1})
    assert resumed.restore(PortableCheckpoint(tmp_path / "portable")) == {"cursor": "segment-3:128"}
    assert resumed.progress == first.progress
    for seed in range(2, 4):
        resumed.ppo_update(random_trajectories(5, seed=seed), stage)
    for got, want in zip(everything(resumed), everything(straight), strict=True):
        np.testing.assert_array_equal(got, want)


def test_the_middle_of_value_pretraining_moves_to_another_mesh(tmp_path):
    stage, trajectories = log_stage(ValuePretrainStage), random_trajectories(7)
    learner = adapter_learner(tmp_path)
    learner.start_stage(stage)
    learner.value_updates(trajectories, stage, max_updates=2)
    learner.save(PortableCheckpoint(tmp_path / "portable"), {})
    other = adapter_learner(tmp_path, mesh={"fsdp": 2})
    other.restore(PortableCheckpoint(tmp_path / "portable"))
    for got, want in zip(everything(other), everything(learner), strict=True):
        np.testing.assert_array_equal(got, want)
    for got, want in zip(other._value_targets, learner._value_targets, strict=True):
        np.testing.assert_array_equal(got, want)


def half_billion(lora: LoraConfig) -> tuple:
    """The shapes of a learner with adapters on a decoder like Qwen2.5-0.5B; no weights."""
    config = DecoderConfig(
        family="qwen2", vocab_size=151_936, hidden_size=896, intermediate_size=4864, num_layers=24, num_heads=14,
        num_kv_heads=2, head_dim=64, tie_embeddings=True, qkv_bias=True,
    )  # fmt: skip
    actor = add_adapters(abstract_decoder(config), lora)
    head = nnx.state(Critic(abstract_decoder(config)), lambda path, _: "value" in path[-1])
    return nnx.state(actor, trainable), head


SHIPPED = load_config(Path("configs/qwen_0.5b_1gpu.yaml")).learner.lora


@pytest.mark.parametrize(("lora", "mib"), [(LoraConfig(rank=8), 28), (SHIPPED, 29)], ids=["attention", "shipped"])
def test_adapters_of_a_half_billion_model_fit_into_four_files(tmp_path, lora, mib):
    adapters, head = half_billion(lora)
    rng = np.random.default_rng(0)

    def random(tree):
        return jax.tree.map(lambda leaf: rng.standard_normal(leaf.shape).astype(leaf.dtype), tree)

    def state(params):
        return jax.eval_shape(lambda params: init_train_state(params, IDLE_OPTIMIZER), params)

    arrays = random({"actor": state(adapters), "critic": state((adapters, head)), "reference": adapters})
    checkpoint = PortableCheckpoint(tmp_path / "portable")
    checkpoint.save(arrays, {"cursor": 7})
    sizes = [path.stat().st_size for path in (tmp_path / "portable").iterdir()]
    assert len(sizes) <= MAX_FILES and max(sizes) <= MAX_FILE_BYTES
    assert sum(sizes) > mib << 20  # two networks with two moments each, and the reference
    restored = checkpoint.arrays(arrays)
    jax.tree.map(np.testing.assert_array_equal, restored, arrays)
    assert checkpoint.record() == {"cursor": 7}


def test_what_does_not_fit_is_refused_before_anything_is_written(tmp_path):
    large = {"actor": np.zeros((30, 1 << 20), np.uint8), "critic": np.zeros((20, 1 << 20), np.uint8)}
    with pytest.raises(CheckpointError, match="room for 47 MiB and this learner's state takes 50 MiB.*largest: actor"):
        PortableCheckpoint(tmp_path / "portable").save(large, {})
    assert not list(tmp_path.iterdir())


def test_damage_and_mixed_up_models_are_named(tmp_path):
    folder = tmp_path / "portable"
    with pytest.raises(CheckpointError, match="holds no portable checkpoint: record.json is missing"):
        adapter_learner(tmp_path).restore(PortableCheckpoint(folder))
    adapter_learner(tmp_path).save(PortableCheckpoint(folder), {})
    with pytest.raises(FileExistsError, match="not an empty folder"):
        adapter_learner(tmp_path).save(PortableCheckpoint(folder), {})
    with pytest.raises(CheckpointError, match="base with checksum"):
        adapter_learner(tmp_path, seed=1).restore(PortableCheckpoint(folder))
    wider = make_learner(tmp_path, actor=add_adapters(tiny_actor(), LoraConfig(rank=4)))
    with pytest.raises(CheckpointError, match=r"of another model: .* is \(.*2.*\) there and \(.*4.*\) here"):
        wider.restore(PortableCheckpoint(folder))
    data = bytearray((folder / "arrays-0.safetensors").read_bytes())
    data[-1] ^= 1
    (folder / "arrays-0.safetensors").write_bytes(data)
    with pytest.raises(CheckpointError, match="arrays-0.safetensors is not the file that was saved"):
        adapter_learner(tmp_path).restore(PortableCheckpoint(folder))
    (folder / "arrays-0.safetensors").unlink()
    with pytest.raises(CheckpointError, match="arrays-0.safetensors is missing"):
        adapter_learner(tmp_path).restore(PortableCheckpoint(folder))
    about = json.loads((folder / "record.json").read_text())
    (folder / "record.json").write_text(json.dumps(about | {"format": 99}))
    with pytest.raises(CheckpointError, match="its format is 99"):
        PortableCheckpoint(folder).record()
