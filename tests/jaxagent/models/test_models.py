"""Decoders and critics: agreement with transformers, packed rows, the way from and to Hugging Face folders."""

from __future__ import annotations

import copy
import json
from dataclasses import replace
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch
import transformers
from flax import nnx
from safetensors.numpy import load_file, save_file
from transformers import (
    AutoModelForCausalLM,
    Gemma3TextConfig,
    LlamaConfig,
    Qwen2Config,
    Qwen3Config,
    Qwen3MoeConfig,
)

from jaxagent.config.learner import MeshConfig
from jaxagent.config.model import ScratchModelConfig
from jaxagent.mesh.sharding import LOGICAL_RULES, make_mesh
from jaxagent.models.config import ComputeConfig, UnsupportedModelError
from jaxagent.models.decoder import logical_axes, new_decoder
from jaxagent.models.export import export_hf
from jaxagent.models.families import from_hf, from_scratch, to_hf
from jaxagent.models.params import WeightsError, _TensorFiles, load_config, load_decoder, named_weights
from jaxagent.models.value import Critic

SHAPE = {"vocab_size": 211, "hidden_size": 48, "intermediate_size": 80, "num_hidden_layers": 3,
         "num_attention_heads": 6, "num_key_value_heads": 2, "initializer_range": 0.1}  # fmt: skip
LLAMA3_ROPE = {"rope_type": "llama3", "rope_theta": 5e5, "factor": 8.0, "low_freq_factor": 1.0,
               "high_freq_factor": 4.0, "original_max_position_embeddings": 64}  # fmt: skip
YARN_ROPE = {"rope_type": "yarn", "rope_theta": 1e4, "factor": 4.0, "original_max_position_embeddings": 64}
EXPERTS = {"num_experts": 6, "num_experts_per_tok": 2, "moe_intermediate_size": 24, "head_dim": 16}
GEMMA = SHAPE | {"num_hidden_layers": 5, "head_dim": 16, "query_pre_attn_scalar": 24, "sliding_window": 20}
GEMMA_ROPES = {
    "full_attention": {"rope_type": "linear", "factor": 8.0, "rope_theta": 1e6},
    "sliding_attention": {"rope_type": "default", "rope_theta": 1e4},
}
MODELS = {
    "llama": LlamaConfig(**SHAPE),
    "llama, tied, one kv head": LlamaConfig(**SHAPE | {"num_key_value_heads": 1}, tie_word_embeddings=True),
    "llama, all biases, heads of 16": LlamaConfig(**SHAPE, attention_bias=True, mlp_bias=True, head_dim=16),
    "llama, llama3 rope": LlamaConfig(**SHAPE, rope_parameters=LLAMA3_ROPE),
    "llama, linear rope": LlamaConfig(
        **SHAPE, rope_parameters={"rope_type": "linear", "rope_theta": 1e4, "factor": 4.0}
    ),
    "llama, yarn rope": LlamaConfig(**SHAPE, rope_parameters=YARN_ROPE, max_position_embeddings=256),
    "qwen2": Qwen2Config(**SHAPE),
    "qwen2, tied, no groups": Qwen2Config(**SHAPE | {"num_key_value_heads": 6}, tie_word_embeddings=True),
    "qwen3, heads of 32": Qwen3Config(**SHAPE, head_dim=32),
    "qwen3, tied, biases": Qwen3Config(**SHAPE, head_dim=16, attention_bias=True, tie_word_embeddings=True),
    "qwen3, yarn rope, given temperature": Qwen3Config(
        **SHAPE, head_dim=16, rope_parameters=YARN_ROPE | {"attention_factor": 1.5, "beta_fast": 8.0, "beta_slow": 2.0}
    ),
    "qwen3_moe": Qwen3MoeConfig(**SHAPE, **EXPERTS, norm_topk_prob=True),
    "qwen3_moe, tied, weights not normalised": Qwen3MoeConfig(
        **SHAPE, **EXPERTS | {"num_experts_per_tok": 3}, norm_topk_prob=False, tie_word_embeddings=True
    ),
    "gemma3": Gemma3TextConfig(**GEMMA, sliding_window_pattern=3),
    "gemma3, untied, scaled rope, listed layers": Gemma3TextConfig(
        **GEMMA,
        rope_parameters=GEMMA_ROPES,
        layer_types=["full_attention"] + 4 * ["sliding_attention"],
        attention_bias=True,
        tie_word_embeddings=False,
    ),
}
ONE_OF_EACH = ["llama", "qwen2", "qwen3, tied, biases", "qwen3_moe", "gemma3"]


@pytest.fixture(scope="module", autouse=True)
def _no_progress_bars():
    transformers.utils.logging.disable_progress_bar()
    yield
    transformers.utils.logging.enable_progress_bar()


def _reference(config, folder: Path, dtype: torch.dtype = torch.float32) -> torch.nn.Module:
    """A random transformers model, saved; every parameter moved off its start, so that no bias is 0, no norm 1."""
    torch.manual_seed(0)
    # A copy, because transformers writes the dtype into the config and rounds Gemma's embedding scale by it.
    model = AutoModelForCausalLM.from_config(copy.deepcopy(config)).to(dtype).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.1 * torch.randn_like(parameter))
    model.save_pretrained(folder)
    return model


def _logits(model: torch.nn.Module, token_ids: np.ndarray) -> np.ndarray:
    with torch.no_grad():
        return model(torch.tensor(token_ids)).logits.float().numpy()


def _alone(num_rows: int, num_tokens: int) -> tuple[np.ndarray, np.ndarray]:
    positions = np.tile(np.arange(num_tokens, dtype=np.int32), (num_rows, 1))
    return positions, np.ones_like(positions)


def _small(**changes) -> ScratchModelConfig:
    shape = {"vocab_size": 300, "num_layers": 2, "hidden_size": 64, "intermediate_size": 96, "num_heads": 2}
    return ScratchModelConfig(**shape | {"num_kv_heads": 1} | changes)


@nnx.jit
def _forward(decoder, token_ids, positions, segment_ids):
    return decoder.logits(decoder(token_ids, positions, segment_ids))


def _token_ids(*shape: int) -> np.ndarray:
    return np.random.default_rng(1).integers(0, SHAPE["vocab_size"], shape).astype(np.int32)


def _bits(array: np.ndarray) -> np.ndarray:
    return array.view(np.uint8)


@pytest.mark.parametrize("config", MODELS.values(), ids=MODELS.keys())
def test_logits_are_those_of_transformers_there_and_back(config, tmp_path):
    reference = _reference(config, tmp_path / "in")
    token_ids = _token_ids(2, 150)
    decoder = load_decoder(tmp_path / "in")
    expected = _logits(reference, token_ids)
    logits = _forward(decoder, token_ids, *_alone(2, 150))
    assert logits.dtype == jnp.float32
    assert np.abs(logits - expected).max() <= 1e-4 * np.abs(expected).max()

    export_hf(decoder, decoder.config, tmp_path / "out")
    again = AutoModelForCausalLM.from_pretrained(tmp_path / "out").eval()
    np.testing.assert_array_equal(_logits(again, token_ids), expected)
    assert load_config(tmp_path / "out") == decoder.config


@pytest.mark.parametrize("name", ONE_OF_EACH)
def test_a_folder_comes_back_bit_for_bit(name, tmp_path):
    _assert_comes_back(name, torch.bfloat16, tmp_path)


@pytest.mark.parametrize("dtype", [torch.float16, torch.float32], ids=str)
def test_a_folder_comes_back_in_its_stored_dtype(dtype, tmp_path):
    _assert_comes_back("qwen3, tied, biases", dtype, tmp_path)


def _assert_comes_back(name, dtype, tmp_path):
    _reference(MODELS[name], tmp_path / "in", dtype)
    (tmp_path / "in" / "tokenizer.json").write_text("{}")
    decoder = load_decoder(tmp_path / "in", dtype=jnp.float32)
    for out, source in (("with source", tmp_path / "in"), ("without", None)):
        export_hf(decoder, decoder.config, tmp_path / out, source=source)
        stored, written = (load_file(tmp_path / name / "model.safetensors") for name in ("in", out))
        assert stored.keys() == written.keys()
        for name in stored:
            assert stored[name].dtype == written[name].dtype
            np.testing.assert_array_equal(_bits(stored[name]), _bits(written[name]), err_msg=name)
    assert (tmp_path / "with source" / "tokenizer.json").exists()
    assert (tmp_path / "with source" / "config.json").read_text() == (tmp_path / "in" / "config.json").read_text()


@pytest.mark.parametrize("mesh", [{"fsdp": 2}, {"expert": 2}, {"tensor": 2}], ids=str)
def test_weights_are_sharded_as_they_arrive(mesh, tmp_path, monkeypatch):
    _reference(MODELS["qwen3_moe"], tmp_path)
    whole = load_decoder(tmp_path)
    reads = []
    read = _TensorFiles.read
    monkeypatch.setattr(_TensorFiles, "read", lambda self, name: reads.append(name) or read(self, name))
    sharded = load_decoder(tmp_path, mesh=make_mesh(MeshConfig(**mesh), rows_per_microbatch=2))
    assert len(reads) == len(set(reads)) == len(load_file(tmp_path / "model.safetensors"))
    for (name, value), (_, expected) in zip(named_weights(sharded), named_weights(whole), strict=True):
        np.testing.assert_array_equal(value, expected, err_msg=name)
    shard = sharded.layers.mlp.gate[...].addressable_shards[0].data
    assert shard.size == whole.layers.mlp.gate[...].size // 2


def test_many_small_files_hold_the_same_weights_as_one(tmp_path):
    decoder = new_decoder(from_scratch(_small(num_layers=2)), seed=3)
    export_hf(decoder, decoder.config, tmp_path / "many", max_file_bytes=100_000)
    assert len(list((tmp_path / "many").glob("model-*-of-*.safetensors"))) > 2
    again = dict(named_weights(load_decoder(tmp_path / "many")))
    for name, value in named_weights(decoder):
        np.testing.assert_array_equal(value, again.pop(name))
    assert not again
    assert AutoModelForCausalLM.from_pretrained(tmp_path / "many").config.model_type == "llama"


@pytest.mark.parametrize("name", ["qwen3, heads of 32", "qwen3_moe", "gemma3"])
def test_packed_rows_give_the_hidden_states_of_each_sequence_alone(name, tmp_path):
    reference = _reference(MODELS[name], tmp_path)
    decoder = load_decoder(tmp_path, compute=ComputeConfig(attention="blockwise", block_q=32, block_kv=32))
    token_ids = _token_ids(2, 200)
    positions, segment_ids = np.zeros((2, 200), np.int32), np.zeros((2, 200), np.int32)
    places = [(0, 0, 70), (0, 70, 71), (0, 71, 161), (1, 0, 30), (1, 30, 130)]  # row, start, end; the rest is padding
    for segment, (row, start, end) in enumerate(places, start=1):
        positions[row, start:end] = np.arange(end - start)
        segment_ids[row, start:end] = segment
    packed = np.asarray(nnx.jit(type(decoder).__call__)(decoder, token_ids, positions, segment_ids))
    assert np.isfinite(packed).all()
    for row, start, end in places:
        with torch.no_grad():
            alone = reference.model(torch.tensor(token_ids[row : row + 1, start:end])).last_hidden_state[0].numpy()
        np.testing.assert_allclose(packed[row, start:end], alone, atol=1e-4 * np.abs(alone).max())


IN_TILES = ComputeConfig(remat="keep_attention", attention="blockwise", block_q=16, block_kv=16)


@pytest.mark.parametrize(
    "compute",
    [
        ComputeConfig(remat=True),
        ComputeConfig(unroll_layers=3),
        IN_TILES,
        replace(IN_TILES, remat="keep_products"),
        ComputeConfig(remat="keep_products", unroll_layers=True),
    ],
    ids=["remat", "unroll", "keep attention", "keep products", "keep products, unroll"],
)
def test_remat_and_unrolling_change_no_gradient(compute):
    config = from_scratch(_small(num_layers=3))
    token_ids = _token_ids(2, 40)

    def gradients(compute: ComputeConfig):
        graphdef, params = nnx.split(new_decoder(config, compute, seed=0), nnx.Param)

        def loss(params):
            decoder = nnx.merge(graphdef, params)
            return jnp.square(decoder.logits(decoder(token_ids, *_alone(2, 40)))).mean()

        return jax.jit(jax.grad(loss))(params)

    jax.tree.map(
        lambda a, b: np.testing.assert_allclose(a, b, atol=1e-6), gradients(compute), gradients(ComputeConfig())
    )


def test_remat_keeps_one_hidden_state_a_layer():
    config = from_scratch(_small(num_layers=12))
    token_ids = np.zeros((1, 512), np.int32)

    def temporary_bytes(compute: ComputeConfig) -> int:
        graphdef, params = nnx.split(new_decoder(config, compute, seed=0), nnx.Param)
        loss = jax.jit(jax.grad(lambda params: nnx.merge(graphdef, params)(token_ids, *_alone(1, 512)).sum()))
        return loss.lower(params).compile().memory_analysis().temp_size_in_bytes

    assert temporary_bytes(ComputeConfig(remat=True)) < 0.5 * temporary_bytes(ComputeConfig())


def test_kept_attention_is_not_computed_again():
    """Two nested loops in a forward pass over tiles, two in a backward pass, and one over layers in each."""
    config = from_scratch(_small(num_layers=2))

    def num_loops(remat) -> int:
        graphdef, params = nnx.split(new_decoder(config, replace(IN_TILES, remat=remat), seed=0), nnx.Param)
        loss = jax.jit(jax.grad(lambda params: nnx.merge(graphdef, params)(_token_ids(1, 64), *_alone(1, 64)).sum()))
        return loss.lower(params).as_text().count("stablehlo.while")

    assert num_loops("keep_attention") == num_loops(False) == num_loops(True) - 2


def test_kept_products_are_not_computed_again():
    config = from_scratch(_small(num_layers=2))

    def num_products(remat) -> int:
        graphdef, params = nnx.split(new_decoder(config, replace(IN_TILES, remat=remat), seed=0), nnx.Param)
        loss = jax.jit(jax.grad(lambda params: nnx.merge(graphdef, params)(_token_ids(1, 64), *_alone(1, 64)).sum()))
        return loss.lower(params).as_text().count("stablehlo.dot_general")

    assert num_products("keep_products") == num_products(False) < num_products("keep_attention") < num_products(True)


def test_the_program_does_not_grow_with_depth():
    def num_lines(num_layers: int) -> int:
        config = from_scratch(_small(num_layers=num_layers))
        graphdef, params = nnx.split(new_decoder(config, seed=0), nnx.Param)
        step = jax.jit(jax.grad(lambda params: nnx.merge(graphdef, params)(_token_ids(1, 16), *_alone(1, 16)).sum()))
        return len(step.lower(params).as_text().splitlines())

    assert num_lines(24) == num_lines(2)


def test_bfloat16_computes_near_float32_with_float32_parameters():
    config = from_scratch(_small(family="qwen3", num_layers=3))
    token_ids = _token_ids(1, 100)
    exact, rough = (new_decoder(config, ComputeConfig(dtype=dtype), seed=0) for dtype in ("float32", "bfloat16"))
    assert jax.eval_shape(rough, token_ids, *_alone(1, 100)).dtype == jnp.bfloat16
    logits, expected = (_forward(decoder, token_ids, *_alone(1, 100)) for decoder in (rough, exact))
    assert logits.dtype == jnp.float32
    assert 0 < np.abs(logits - expected).max() < 0.05 * np.abs(expected).max()


def test_the_same_seed_gives_the_same_weights_and_another_seed_others():
    config = from_scratch(_small(num_layers=2))
    first, same, other = (dict(named_weights(load_decoder(config, seed=seed))) for seed in (5, 5, 6))
    name = "model.layers.1.self_attn.q_proj.weight"
    np.testing.assert_array_equal(first[name], same[name])
    assert (first[name] != other[name]).any()
    assert (first[name] != first[name.replace("1", "0")]).any()


def test_a_fresh_model_is_nearly_uniform_over_the_vocabulary():
    config = from_scratch(_small(vocab_size=1024))
    decoder = new_decoder(config, seed=0)
    logprobs = jax.nn.log_softmax(_forward(decoder, _token_ids(1, 64), *_alone(1, 64)))
    assert abs(float(-logprobs.mean()) - np.log(1024)) < 0.2


def test_a_new_critic_says_zero_and_learns_without_touching_the_actor():
    decoder = new_decoder(from_scratch(_small(num_layers=2)), seed=0)
    critic = Critic.from_decoder(decoder)
    token_ids = _token_ids(2, 30)
    call = nnx.jit(lambda module: module(token_ids, *_alone(2, 30)))
    values = call(critic)
    assert values.shape == (2, 30) and values.dtype == jnp.float32
    np.testing.assert_array_equal(values, 0.0)
    np.testing.assert_array_equal(call(critic.backbone), call(decoder))
    graphdef, params = nnx.split(critic, nnx.Param)

    def loss(params):
        return jnp.square(nnx.merge(graphdef, params)(token_ids, *_alone(2, 30)) - 1.0).mean()

    before, gradient = jax.jit(jax.value_and_grad(loss))(params)
    stepped = jax.tree.map(lambda value, slope: value - 0.02 * slope, params, gradient)
    assert jax.jit(loss)(stepped) < before
    actor = {array.unsafe_buffer_pointer() for array in jax.tree.leaves(nnx.state(decoder))}
    assert not actor & {array.unsafe_buffer_pointer() for array in jax.tree.leaves(params)}


def test_a_critic_of_an_untied_decoder_has_no_language_model_head(tmp_path):
    _reference(MODELS["llama"], tmp_path)
    critic = Critic.from_decoder(load_decoder(tmp_path))
    names = {".".join(map(str, path)) for path, _ in nnx.to_flat_state(nnx.state(critic, nnx.Param))}
    assert "backbone.embedding" in names and not any("lm_head" in name for name in names)


@pytest.mark.parametrize("family", ["llama", "qwen2", "qwen3", "qwen3_moe"])
def test_every_parameter_names_each_of_its_axes(family):
    experts = {"num_experts": 4, "experts_per_token": 2} if family == "qwen3_moe" else {}
    config = from_scratch(_small(family=family, num_layers=2, **experts))
    params = nnx.state(Critic.from_decoder(new_decoder(config, seed=0)), nnx.Param)
    axes = jax.tree.leaves(logical_axes(params), is_leaf=lambda leaf: isinstance(leaf, tuple))
    shapes = [array.shape for array in jax.tree.leaves(params)]
    assert [len(names) for names in axes] == [len(shape) for shape in shapes]
    assert {name for names in axes for name in names} <= LOGICAL_RULES.keys()


def test_weights_are_published_under_the_names_and_shapes_of_transformers(tmp_path):
    reference = _reference(MODELS["llama, all biases, heads of 16"], tmp_path)
    published = dict(named_weights(load_decoder(tmp_path)))
    state = reference.state_dict()
    assert published.keys() == state.keys()
    for name, value in published.items():
        assert value.flags.c_contiguous
        np.testing.assert_array_equal(value, state[name].numpy(), err_msg=name)


def test_gemmas_config_files_of_transformers_4_read_like_those_of_5():
    old = {"architectures": ["Gemma3ForCausalLM"], "model_type": "gemma3_text", "head_dim": 256, "hidden_size": 640,
           "hidden_activation": "gelu_pytorch_tanh", "intermediate_size": 2048, "max_position_embeddings": 32768,
           "num_attention_heads": 4, "num_hidden_layers": 18, "num_key_value_heads": 1, "query_pre_attn_scalar": 256,
           "rms_norm_eps": 1e-6, "rope_local_base_freq": 10000, "rope_theta": 1000000, "rope_scaling": None,
           "sliding_window": 512, "sliding_window_pattern": 6, "torch_dtype": "bfloat16", "vocab_size": 262144,
           "bos_token_id": 2, "eos_token_id": 1, "pad_token_id": 0}  # fmt: skip
    config = from_hf(old)
    assert config.tie_embeddings and config.score_scale == 1 / 16 and config.sliding_window == 512
    assert [layer for layer, slides in enumerate(config.sliding_layers) if not slides] == [5, 11, 17]
    assert config.sliding_rope is not None and (config.rope.theta, config.sliding_rope.theta) == (1e6, 1e4)
    assert from_hf(to_hf(config)) == config
    new = Gemma3TextConfig(**{key: value for key, value in old.items() if key not in ("architectures", "model_type")})
    assert from_hf(new.to_dict() | {"architectures": old["architectures"]}) == config


def test_config_files_of_transformers_4_read_like_those_of_5():
    old = {"architectures": ["Qwen2ForCausalLM"], "model_type": "qwen2", "hidden_act": "silu", "hidden_size": 896,
           "intermediate_size": 4864, "max_position_embeddings": 32768, "max_window_layers": 21,
           "num_attention_heads": 14, "num_hidden_layers": 24, "num_key_value_heads": 2, "rms_norm_eps": 1e-6,
           "rope_theta": 1e6, "sliding_window": 32768, "tie_word_embeddings": True, "torch_dtype": "bfloat16",
           "use_sliding_window": False, "vocab_size": 151936, "eos_token_id": [151645, 151643]}  # fmt: skip
    config = from_hf(old)
    assert (config.head_dim, config.qkv_bias, config.output_bias, config.rope.theta) == (64, True, False, 1e6)
    assert (config.stored_dtype, config.eos_token_ids) == ("bfloat16", (151645, 151643))
    assert from_hf(to_hf(config)) == config


MOE = {"architectures": ["Qwen3MoeForCausalLM"]} | EXPERTS


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (
            {"architectures": ["MambaForCausalLM"]},
            "LlamaForCausalLM, Qwen2ForCausalLM, Qwen3ForCausalLM, Qwen3MoeForCausalLM, Gemma3ForCausalLM",
        ),
        (MOE | {"mlp_only_layers": [0]}, r"mlp_only_layers=\[0\] is not supported; allowed: none"),
        (MOE | {"num_experts_per_tok": 9}, "experts_per_token=9 must lie between 1 and num_experts=6"),
        (
            {"architectures": ["Gemma3ForCausalLM"], "final_logit_softcapping": 30.0},
            "final_logit_softcapping=30.0 is not supported; allowed: none",
        ),
        ({"hidden_act": "gelu"}, "hidden_act='gelu' is not supported; allowed: silu"),
        ({"use_sliding_window": True}, "use_sliding_window=True"),
        ({"quantization_config": {"quant_method": "awq"}}, "quantization_config"),
        ({"rope_scaling": {"rope_type": "longrope", "factor": 4.0}}, "rope type 'longrope'.*linear, llama3, yarn"),
        ({"num_key_value_heads": 4}, "num_kv_heads=4 must divide num_heads=6"),
    ],
    ids=str,
)
def test_what_we_do_not_compute_is_refused_by_name(change, message):
    hf = {"architectures": ["LlamaForCausalLM"]} | SHAPE | change
    with pytest.raises(UnsupportedModelError, match=message):
        from_hf(hf)


def test_broken_folders_say_what_is_missing(tmp_path):
    with pytest.raises(FileNotFoundError, match=r"config\.json does not exist.*jaxagent model fetch"):
        load_decoder(tmp_path / "nowhere")
    _reference(MODELS["llama"], tmp_path)
    weights = load_file(tmp_path / "model.safetensors")
    lacking = {name: value for name, value in weights.items() if "layers.2.mlp.up" not in name}
    save_file(lacking, tmp_path / "model.safetensors")
    with pytest.raises(WeightsError, match=r"lack model\.layers\.2\.mlp\.up_proj\.weight"):
        load_decoder(tmp_path)
    save_file(weights | {"model.norm.weight": np.ones(47, np.float32)}, tmp_path / "model.safetensors")
    with pytest.raises(WeightsError, match=r"model\.norm\.weight: shape \(47,\) where config.json asks for \(48,\)"):
        load_decoder(tmp_path)
    (tmp_path / "model.safetensors").unlink()
    with pytest.raises(WeightsError, match=r"no \*\.safetensors"):
        load_decoder(tmp_path)


def test_an_export_never_overwrites_and_leaves_nothing_behind_when_it_fails(tmp_path):
    decoder = new_decoder(from_scratch(_small(num_layers=1)), seed=0)
    (tmp_path / "taken").mkdir()
    (tmp_path / "taken" / "notes.txt").write_text("mine")
    with pytest.raises(FileExistsError, match="not an empty folder"):
        export_hf(decoder, decoder.config, tmp_path / "taken")
    with pytest.raises(FileNotFoundError):
        export_hf(decoder, decoder.config, tmp_path / "out", source=tmp_path / "nowhere")
    assert [path.name for path in tmp_path.iterdir()] == ["taken"]
    assert json.loads(json.dumps(to_hf(decoder.config)))["architectures"] == ["LlamaForCausalLM"]
