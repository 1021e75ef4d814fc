"""Adapters: what is trained and what is frozen, merging, PEFT's format in both directions, checkpoints."""

from __future__ import annotations

import importlib.util
import json
import math
import os
import subprocess
import sys
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch
import transformers
from flax import nnx
from safetensors.numpy import load_file, save_file
from toys import TINY, log_stage, make_learner, ppo_stage, random_trajectories, tiny_actor, weights_of
from transformers import AutoModelForCausalLM, LlamaConfig

from jaxagent.config.learner import LoraConfig
from jaxagent.config.model import ScratchModelConfig
from jaxagent.config.stages import ValuePretrainStage
from jaxagent.learner.checkpoint import CheckpointError, Checkpoints
from jaxagent.models.adapters import load_adapters, read_adapter_config, save_adapters
from jaxagent.models.config import ComputeConfig, UnsupportedModelError
from jaxagent.models.decoder import new_decoder
from jaxagent.models.export import export_hf
from jaxagent.models.families import from_scratch
from jaxagent.models.lora import add_adapters, trainable
from jaxagent.models.params import load_decoder, named_weights
from jaxagent.models.stored import WeightsError
from jaxagent.models.value import Critic

ALL = ["q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"]
LORA = LoraConfig(rank=3, alpha=6.0, targets=ALL)
TOKENS = (
    np.random.default_rng(0).integers(0, 32, (2, 20)).astype(np.int32),
    np.tile(np.arange(20, dtype=np.int32), (2, 1)),
    np.ones((2, 20), np.int32),
)


def adapted(cfg=LORA, *, seed=1, **decoder):
    """A tiny actor whose adapters add something: B is random instead of zero."""
    actor = add_adapters(tiny_actor(**decoder), cfg)
    rng = np.random.default_rng(seed)
    for path, parameter in nnx.to_flat_state(nnx.state(actor, trainable)):
        if path[-1] == "b":
            parameter.set_value(jnp.asarray(0.1 * rng.standard_normal(parameter.get_value().shape, np.float32)))
    return actor


@nnx.jit
def logits_of(decoder, tokens=TOKENS):
    return decoder.logits(decoder(*tokens))


def test_new_adapters_add_nothing_and_freeze_everything_else():
    plain, actor = tiny_actor(), add_adapters(tiny_actor(), LORA)
    np.testing.assert_array_equal(logits_of(actor), logits_of(plain))
    names = {path[-2:] for path, _ in nnx.to_flat_state(nnx.state(actor, trainable))}
    assert names == {("adapter", "a"), ("adapter", "b")}
    assert len(nnx.to_flat_state(nnx.state(actor, trainable))) == 2 * len(ALL)


def test_merged_weights_compute_what_base_and_adapters_compute(tmp_path):
    actor = adapted()
    merged = tiny_actor()
    stored = dict(named_weights(actor))
    assert stored.keys() == dict(named_weights(merged)).keys()
    for name, value in named_weights(merged):
        changed = not np.array_equal(stored[name], value)
        assert changed == any(f"{target}.weight" in name for target in ALL), name
    export_hf(actor, actor.config, tmp_path / "merged")
    np.testing.assert_allclose(logits_of(load_decoder(tmp_path / "merged")), logits_of(actor), atol=2e-6)


def test_adapters_stay_float32_beside_a_bfloat16_base():
    actor = add_adapters(new_decoder(TINY, ComputeConfig(dtype="bfloat16"), seed=0, param_dtype=jnp.bfloat16), LORA)
    assert {array.dtype for array in jax.tree.leaves(nnx.state(actor, trainable))} == {jnp.dtype(np.float32)}
    assert dict(named_weights(actor))["model.layers.0.self_attn.q_proj.weight"].dtype == jnp.bfloat16
    trained = nnx.state(Critic.from_decoder(actor), trainable)
    assert {array.dtype for array in jax.tree.leaves(trained)} == {jnp.dtype(np.float32)}


def test_a_critic_has_adapters_of_its_own_over_the_same_base():
    actor = adapted()
    critic = Critic.from_decoder(actor)
    np.testing.assert_array_equal(nnx.jit(lambda c: c.backbone(*TOKENS))(critic), nnx.jit(lambda a: a(*TOKENS))(actor))

    def buffers(module, keep):
        return {array.unsafe_buffer_pointer() for array in jax.tree.leaves(nnx.state(module, keep))}

    assert not buffers(actor, trainable) & buffers(critic, trainable)
    frozen = lambda path, value: isinstance(value, nnx.Param) and not trainable(path, value)  # noqa: E731
    assert buffers(critic, frozen) == buffers(actor, frozen)


def adapter_learner(tmp_path, **settings):
    lora = settings.pop("lora", LoraConfig(rank=2, alpha=4.0))
    return make_learner(tmp_path, actor=add_adapters(tiny_actor(), lora), **settings)


def test_training_moves_adapters_and_value_head_and_publishes_their_sum(tmp_path):
    learner, stage = adapter_learner(tmp_path), ppo_stage(rate=3e-2)
    before = weights_of(learner)
    frozen = [np.array(leaf) for leaf in jax.tree.leaves(learner._steps.actor._frozen)]
    learner.start_stage(stage)
    for seed in range(2):
        metrics = learner.ppo_update(random_trajectories(6, seed=seed), stage)
    assert metrics["actor_grad_norm"] > 0 and metrics["critic_grad_norm"] > 0
    for leaf, was in zip(jax.tree.leaves(learner._steps.actor._frozen), frozen, strict=True):
        np.testing.assert_array_equal(leaf, was)
    moved = {name for name, value in weights_of(learner).items() if not np.array_equal(value, before[name])}
    assert moved == {name for name in before if "self_attn" in name and "_proj" in name}
    for network in (learner._steps.actor, learner._steps.critic):
        base = sum(leaf.size for leaf in jax.tree.leaves(network._frozen))
        assert sum(leaf.size for leaf in jax.tree.leaves(network.state)) < 0.9 * base
    assert np.abs(learner._steps.critic.params["value_kernel"].get_value()).max() > 0


def test_a_checkpoint_holds_adapters_alone_and_resumes_bit_for_bit(tmp_path):
    stage = ppo_stage()
    straight, first = adapter_learner(tmp_path), adapter_learner(tmp_path)
    for learner, updates in ((straight, 4), (first, 2)):
        learner.start_stage(stage)
        for seed in range(updates):
            learner.ppo_update(random_trajectories(5, seed=seed), stage)
    checkpoints = Checkpoints(tmp_path / "checkpoints")
    first.save(checkpoints, {"cursor": 2})
    resumed = adapter_learner(tmp_path, mesh={"fsdp": 2})
    assert resumed.restore(checkpoints) == {"cursor": 2}
    resumed = adapter_learner(tmp_path)
    resumed.restore(checkpoints)
    for seed in range(2, 4):
        resumed.ppo_update(random_trajectories(5, seed=seed), stage)
    for got, want in zip(*(jax.tree.leaves(x._steps.arrays()) for x in (resumed, straight)), strict=True):
        np.testing.assert_array_equal(got, want)
    whole = Checkpoints(tmp_path / "whole")
    make_learner(tmp_path).save(whole, {})
    adapters = Checkpoints(tmp_path / "checkpoints")
    saved, all_of_it = (
        sum(math.prod(shape) for shape in checkpoints._saved_shapes(checkpoints.latest()).values())
        for checkpoints in (adapters, whole)
    )
    assert saved < 0.5 * all_of_it


def test_adapters_of_another_base_are_refused(tmp_path):
    checkpoints = Checkpoints(tmp_path / "checkpoints")
    adapter_learner(tmp_path).save(checkpoints, {})
    other = make_learner(tmp_path, actor=add_adapters(tiny_actor(seed=1), LoraConfig(rank=2, alpha=4.0)))
    with pytest.raises(CheckpointError, match=r"base with checksum \d+ and this one has \d+; set model.path"):
        other.restore(checkpoints)
    with pytest.raises(CheckpointError, match="checksum"):
        make_learner(tmp_path).restore(checkpoints)


def test_value_pretraining_with_adapters_explains_the_returns(tmp_path):
    learner = adapter_learner(tmp_path, lora=LORA)
    stage = log_stage(ValuePretrainStage, epochs=25, size=8)
    learner.start_stage(stage)
    metrics = learner.value_updates(random_trajectories(8, rewards=(-1.0, 3.0)), stage)
    assert metrics[-1]["explained_variance"] > 0.5 > metrics[0]["explained_variance"]


def test_saved_adapters_come_back_bit_for_bit(tmp_path):
    actor = adapted()
    save_adapters(actor, tmp_path / "adapter", base_model="tiny")
    again = load_adapters(tiny_actor(), tmp_path / "adapter")
    saved = {path: array.get_value() for path, array in nnx.to_flat_state(nnx.state(actor, trainable))}
    for path, array in nnx.to_flat_state(nnx.state(again, trainable)):
        np.testing.assert_array_equal(array.get_value(), saved.pop(path))
    assert not saved
    critic = Critic.from_decoder(actor)
    save_adapters(critic.backbone, tmp_path / "critic", base_model="tiny")
    assert (tmp_path / "critic" / "adapter_model.safetensors").read_bytes() == (
        tmp_path / "adapter" / "adapter_model.safetensors"
    ).read_bytes()


def test_names_and_layouts_are_those_that_peft_documents(tmp_path):
    save_adapters(adapted(), tmp_path / "adapter", base_model="tiny")
    stored = load_file(tmp_path / "adapter" / "adapter_model.safetensors")
    prefix = "base_model.model.model.layers.1."
    shapes = {name.removeprefix(prefix): value.shape for name, value in stored.items() if name.startswith(prefix)}
    assert shapes["self_attn.q_proj.lora_A.weight"] == (3, 16) and shapes["self_attn.q_proj.lora_B.weight"] == (16, 3)
    assert shapes["self_attn.k_proj.lora_B.weight"] == (8, 3) and shapes["mlp.down_proj.lora_A.weight"] == (3, 32)
    config = json.loads((tmp_path / "adapter" / "adapter_config.json").read_text())
    assert (config["peft_type"], config["r"], config["lora_alpha"], config["bias"]) == ("LORA", 3, 6, "none")
    assert set(config["target_modules"]) == set(ALL)


PEFT_SIDE = """
import sys, numpy as np, torch, transformers
from peft import LoraConfig, PeftModel, get_peft_model
folder, tokens = sys.argv[1], torch.tensor(np.load(sys.argv[2]))
base = lambda: transformers.AutoModelForCausalLM.from_pretrained(f"{folder}/base").eval()
ours = PeftModel.from_pretrained(base(), f"{folder}/ours").eval()
torch.manual_seed(0)
theirs = get_peft_model(base(), LoraConfig(r=4, lora_alpha=10, target_modules=["q_proj", "o_proj", "up_proj"])).eval()
with torch.no_grad():
    for name, parameter in theirs.named_parameters():
        if "lora_B" in name:
            parameter.normal_(std=0.1)
    np.savez(f"{folder}/logits.npz", ours=ours(tokens).logits, theirs=theirs(tokens).logits, base=base()(tokens).logits)
theirs.save_pretrained(f"{folder}/theirs")
"""


def peft_python() -> str | None:
    """An interpreter that has PEFT: this one, or that of the environment variable JAXAGENT_PEFT_PYTHON."""
    if importlib.util.find_spec("peft") is not None:
        return sys.executable
    return os.environ.get("JAXAGENT_PEFT_PYTHON")


@pytest.mark.skipif(peft_python() is None, reason="PEFT is not installed; JAXAGENT_PEFT_PYTHON names a Python with it")
def test_peft_reads_ours_and_we_read_theirs(tmp_path):
    shape = {"vocab_size": 32, "hidden_size": 16, "intermediate_size": 32, "num_hidden_layers": 2}
    torch.manual_seed(0)
    reference = AutoModelForCausalLM.from_config(
        LlamaConfig(**shape, num_attention_heads=2, num_key_value_heads=1, initializer_range=0.3)
    )
    transformers.utils.logging.disable_progress_bar()
    reference.save_pretrained(tmp_path / "base")
    actor = add_adapters(load_decoder(tmp_path / "base"), LORA)
    for path, parameter in nnx.to_flat_state(nnx.state(actor, trainable)):
        if path[-1] == "b":
            parameter.set_value(parameter.get_value() + 0.1)
    save_adapters(actor, tmp_path / "ours", base_model=str(tmp_path / "base"))
    np.save(tmp_path / "tokens.npy", TOKENS[0].astype(np.int64))
    command = [peft_python(), "-c", PEFT_SIDE, str(tmp_path), str(tmp_path / "tokens.npy")]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    with np.load(tmp_path / "logits.npz") as logits:
        scale = np.abs(logits["base"]).max()
        assert min(np.abs(logits[name] - logits["base"]).max() for name in ("ours", "theirs")) > 0.01 * scale
        assert np.abs(logits_of(actor) - logits["ours"]).max() <= 1e-4 * scale
        theirs = load_adapters(load_decoder(tmp_path / "base"), tmp_path / "theirs")
        assert np.abs(logits_of(theirs) - logits["theirs"]).max() <= 1e-4 * scale
    save_adapters(theirs, tmp_path / "back", base_model="base")
    stored, back = (load_file(tmp_path / name / "adapter_model.safetensors") for name in ("theirs", "back"))
    assert stored.keys() == back.keys()
    for name, value in stored.items():
        np.testing.assert_array_equal(back[name], value, err_msg=name)


def changed_folder(tmp_path: Path, **changes) -> Path:
    save_adapters(adapted(), tmp_path / "adapter", base_model="tiny")
    path = tmp_path / "adapter" / "adapter_config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | changes))
    return tmp_path / "adapter"


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"use_dora": True}, "use_dora=True is not supported; supported is plain LoRA"),
        ({"peft_type": "IA3"}, "peft_type='IA3' is not supported"),
        ({"rank_pattern": {"q_proj": 8}}, "rank_pattern"),
        ({"target_modules": ["embed_tokens"]}, "targets.* has 'embed_tokens', which is not supported"),
    ],
    ids=str,
)
def test_adapters_of_another_kind_are_refused_by_name(tmp_path, changes, message):
    with pytest.raises(UnsupportedModelError, match=message):
        read_adapter_config(changed_folder(tmp_path, **changes))


def test_adapters_that_do_not_fit_say_what_is_wrong(tmp_path):
    with pytest.raises(FileNotFoundError, match="adapter_config.json does not exist"):
        load_adapters(tiny_actor(), tmp_path)
    folder = changed_folder(tmp_path)
    file = folder / "adapter_model.safetensors"
    stored = load_file(file)
    name = "base_model.model.model.layers.0.self_attn.v_proj.lora_A.weight"
    for changed, message in (
        ({key: value for key, value in stored.items() if key != name}, f"lacks {name}"),
        (stored | {name: np.zeros((3, 15), np.float32)}, r"shape \(3, 15\) where config.json asks for \(3, 16\)"),
        (stored | {"base_model.model.other": np.zeros(2, np.float32)}, "no place for: base_model.model.other"),
    ):
        save_file(changed, file)
        with pytest.raises(WeightsError, match=message):
            load_adapters(tiny_actor(), folder)
    with pytest.raises(ValueError, match="no adapters; set learner.lora"):
        save_adapters(tiny_actor(), tmp_path / "none", base_model="tiny")


def test_experts_have_no_adapters():
    shape = ScratchModelConfig(family="qwen3_moe", hidden_size=64, num_heads=2, num_kv_heads=1, num_layers=1,
                               num_experts=4, experts_per_token=2)  # fmt: skip
    decoder = new_decoder(from_scratch(shape), seed=0)
    with pytest.raises(UnsupportedModelError, match="no matrix 'up_proj' for an adapter; it has q_proj, k_proj"):
        add_adapters(decoder, LoraConfig(targets=["up_proj"]))
    with pytest.raises(ValueError, match="names a matrix twice"):
        LoraConfig(targets=["q_proj", "q_proj"])
