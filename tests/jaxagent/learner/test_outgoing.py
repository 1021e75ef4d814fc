"""The actor's weights for engines: the same bytes on every way, and only what training changes after the first time."""

from __future__ import annotations

from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch
from safetensors.numpy import load_file

from jaxagent.config.learner import LoraConfig
from jaxagent.config.load import load_config
from jaxagent.config.model import ScratchModelConfig
from jaxagent.learner.outgoing import DeviceWeights, SharedMemoryWeights, make_outgoing, names_that_change
from jaxagent.models.families import from_scratch
from jaxagent.models.lora import add_adapters
from jaxagent.models.params import load_decoder, named_weights
from rollout.packages import PackedPackage, WeightsError, WeightsPackage
from rollout.packed import views

LORA = LoraConfig(rank=2, targets=["k_proj", "down_proj"])


def adapted_decoder(*, step: float = 0.0):
    shape = ScratchModelConfig(num_layers=2, hidden_size=64, intermediate_size=96, num_heads=2, num_kv_heads=1)
    decoder = add_adapters(load_decoder(from_scratch(shape), seed=1), LORA)
    adapter = decoder.layers.mlp.down.adapter
    adapter.b[...] = jnp.full_like(adapter.b[...], step)
    return decoder


def config_with(tmp_path: Path, *overrides: str):
    settings = ["--runs_dir", str(tmp_path), "--learner.lora.rank=2", "--learner.lora.targets=[k_proj, down_proj]"]
    return load_config(Path("configs/smoke.yaml"), [*settings, *overrides])


def packed_arrays(weights: DeviceWeights, package: PackedPackage) -> dict[str, torch.Tensor]:
    buffer = next(buffer for buffer in weights._writer._buffers if buffer.version == package.version)
    parts = package.parts
    return {
        name: tensor
        for part in parts
        for name, tensor in views(buffer.data[part.offset :][: part.num_bytes], part.tensors)
    }


def test_on_a_device_the_weights_are_those_of_the_files(tmp_path):
    weights = make_outgoing(config_with(tmp_path, "--engine.weight_transfer=nccl"), host="127.0.0.1")
    assert isinstance(weights, DeviceWeights)
    previous = {}
    for version, step in enumerate((0.0, 0.3, 0.7)):
        decoder = adapted_decoder(step=step)
        package = weights.write(decoder, version=version, probe=None)
        assert isinstance(package, PackedPackage)
        expected, found = dict(named_weights(decoder)), packed_arrays(weights, package)
        assert expected.keys() == found.keys() == package.layout().keys()
        for name, array in expected.items():
            assert array.tobytes() == found[name].numpy().tobytes(), name
        changed, same = ({tensor.name for tensor in part.tensors} for part in package.parts)
        assert {name.split(".")[-2] for name in changed} == {"q_proj", "k_proj", "v_proj", "down_proj"}
        assert not any(previous and (previous[name] != expected[name]).any() for name in same)
        previous = expected
    weights.close()


def test_in_bfloat16_they_are_rounded_as_vllm_would(tmp_path):
    config = config_with(tmp_path, "--engine.weight_transfer=nccl", "--engine.dtype=bfloat16")
    weights = make_outgoing(config, host="127.0.0.1")
    assert isinstance(weights, DeviceWeights)
    decoder = adapted_decoder(step=0.1)
    found = packed_arrays(weights, weights.write(decoder, version=0, probe=None))  # type: ignore[arg-type]
    for name, array in named_weights(decoder):
        assert torch.equal(found[name], torch.tensor(array).to(torch.bfloat16)), name
    weights.close()


def test_unchanging_files_are_written_once_and_stay(tmp_path):
    weights = make_outgoing(config_with(tmp_path), host="127.0.0.1")
    assert isinstance(weights, SharedMemoryWeights)
    packages = [weights.write(adapted_decoder(step=0.1 * v), version=v, probe=None) for v in range(4)]
    assert all(isinstance(package, WeightsPackage) for package in packages)
    constant = {tuple(file for file in package.files if not file.changed) for package in packages}  # type: ignore[union-attr]
    assert len(constant) == 1
    assert {Path(file.path).exists() for files in constant for file in files} == {True}
    last = {name: array for file in packages[-1].files for name, array in load_file(file.path).items()}  # type: ignore[union-attr]
    expected = dict(named_weights(adapted_decoder(step=0.1 * 3)))
    assert last.keys() == expected.keys()
    assert all(np.array_equal(last[name], expected[name]) for name in expected)
    with pytest.raises(WeightsError, match="version 3 lies in shared memory"):
        weights.send(PackedPackage(version=3, parts=[], source={}))
    weights.close()
    assert {Path(file.path).exists() for files in constant for file in files} == {False}


def test_without_adapters_everything_changes():
    changing, unchanging = names_that_change(None)
    assert changing("lm_head.weight") and not unchanging("lm_head.weight")
    changing, unchanging = names_that_change(LoraConfig(targets=["up_proj"]))
    assert changing("model.layers.{}.mlp.gate_proj.weight") and unchanging("model.layers.{}.mlp.down_proj.weight")
    assert unchanging("model.layers.{}.self_attn.q_proj.bias")


def test_memory_of_a_cpu_is_not_shown_to_engines(tmp_path):
    assert jax.default_backend() == "cpu"
    with pytest.raises(WeightsError, match="cannot be shown to another process"):
        make_outgoing(config_with(tmp_path, "--engine.weight_transfer=ipc"), host="127.0.0.1")
