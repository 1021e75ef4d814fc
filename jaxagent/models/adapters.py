"""Adapters as a folder in the format of PEFT: adapter_config.json and adapter_model.safetensors."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from pydantic import ValidationError
from safetensors.numpy import load_file, save_file

from jaxagent.config.learner import LoraConfig
from jaxagent.files.new_folder import new_folder
from jaxagent.models.config import UnsupportedModelError
from jaxagent.models.decoder import Backbone, Decoder
from jaxagent.models.lora import adapters_of, add_adapters
from jaxagent.models.stored import ATTENTION_MATRICES, Rule, WeightsError

CONFIG_FILE = "adapter_config.json"
WEIGHTS_FILE = "adapter_model.safetensors"
_OTHER_KINDS = ("use_dora", "use_rslora", "rank_pattern", "alpha_pattern", "modules_to_save", "layers_to_transform",
                "layer_replication", "target_parameters", "lora_bias", "fan_in_fan_out")  # fmt: skip
"""Options of PEFT that change what an adapter computes, off by default."""


def save_adapters(backbone: Backbone, out: str | Path, *, base_model: str) -> Path:
    """Writes the adapters of an actor, or of a critic's backbone, into the new or empty folder `out`.

    `base_model` is the name or path of the model that they belong to. PEFT and vLLM load the folder. Raises
    FileExistsError, or ValueError where there are no adapters.
    """
    adapted = adapters_of(backbone)
    if not adapted:
        raise ValueError("the model has no adapters; set learner.lora, or export the whole model")
    adapters = [adapter for _, adapter in adapted.values()]
    rank = adapters[0].a[...].shape[-1]
    weights = {}
    for rule, parameter in _stored(backbone):
        value = np.asarray(jax.device_get(parameter.get_value()))
        for place in rule.places(value.shape):
            weights[rule.hf_name.format(*place)] = rule.to_hf(value[place])
    with new_folder(out) as folder:
        config = _peft_config(list(adapted), rank=rank, alpha=adapters[0].scale * rank, base_model=base_model)
        (folder / CONFIG_FILE).write_text(json.dumps(config, indent=2) + "\n")
        save_file(weights, folder / WEIGHTS_FILE, metadata={"format": "pt"})
    return Path(out)


def load_adapters(decoder: Decoder, folder: str | Path) -> Decoder:
    """Freezes the decoder and adds the adapters of a PEFT folder to it, in place.

    Raises FileNotFoundError; UnsupportedModelError for other adapters than LoRA's, or on other matrices; WeightsError
    where the tensors don't fit the model.
    """
    folder = Path(folder)
    add_adapters(decoder, read_adapter_config(folder))
    stored = load_file(folder / WEIGHTS_FILE)
    for rule, parameter in _stored(decoder):
        value = np.empty(parameter.get_value().shape, np.float32)
        for place in rule.places(value.shape):
            value[place] = _take(stored, rule, rule.hf_name.format(*place), value.shape[1:])
        parameter.set_value(jnp.asarray(value))
    if stored:
        raise WeightsError(f"{folder / WEIGHTS_FILE} holds tensors that this model has no place for: "
                           f"{', '.join(sorted(stored)[:3])}; is it an adapter of another model?")  # fmt: skip
    return decoder


def read_adapter_config(folder: str | Path) -> LoraConfig:
    """What a PEFT folder's adapter_config.json says. Raises FileNotFoundError or UnsupportedModelError."""
    path = Path(folder) / CONFIG_FILE
    if not path.is_file():
        raise FileNotFoundError(f"{path} does not exist: an adapter's folder holds {CONFIG_FILE} and {WEIGHTS_FILE}")
    peft = json.loads(path.read_text())
    odd = [f"{name}={peft[name]!r}" for name in _OTHER_KINDS if peft.get(name)]
    odd += [f"{name}={peft.get(name)!r}" for name, only in (("peft_type", "LORA"), ("bias", "none"))
            if peft.get(name, only) != only]  # fmt: skip
    if odd:
        raise UnsupportedModelError(
            f"{path}: {', '.join(odd)} is not supported; supported is plain LoRA without biases"
        )
    try:
        return LoraConfig(rank=peft["r"], alpha=peft["lora_alpha"], targets=sorted(peft["target_modules"]))
    except ValidationError as error:
        first = error.errors()[0]
        raise UnsupportedModelError(
            f"{path}: {'.'.join(map(str, first['loc']))} has {first['input']!r}, which is not supported: {first['msg']}"
        ) from None


def _stored(backbone: Backbone) -> Iterator[tuple[Rule, nnx.Param]]:
    """A and B of every adapter, with their stored names."""
    for name, (linear, adapter) in adapters_of(backbone).items():
        part = "self_attn" if name in ATTENTION_MATRICES else "mlp"
        prefix = f"base_model.model.model.layers.{{}}.{part}.{name}."
        yield Rule(("a",), f"{prefix}lora_A.weight", len(linear.inputs)), adapter.a
        yield Rule(("b",), f"{prefix}lora_B.weight", 1), adapter.b


def _take(stored: dict[str, np.ndarray], rule: Rule, name: str, shape: tuple[int, ...]) -> np.ndarray:
    if name not in stored:
        raise WeightsError(f"{WEIGHTS_FILE} lacks {name}, which {CONFIG_FILE} asks for")
    try:
        return rule.from_hf(stored.pop(name), shape)
    except WeightsError as error:
        raise WeightsError(f"{name}: {error}") from None


def _peft_config(targets: list[str], *, rank: int, alpha: float, base_model: str) -> dict[str, Any]:
    return {
        "peft_type": "LORA",
        "task_type": "CAUSAL_LM",
        "base_model_name_or_path": base_model,
        "r": rank,
        # PEFT declares an integer, and vLLM reads it as one where it can.
        "lora_alpha": int(alpha) if float(alpha).is_integer() else alpha,
        "target_modules": targets,
        "lora_dropout": 0.0,
        "bias": "none",
        "fan_in_fan_out": False,
        "inference_mode": True,
        "init_lora_weights": True,
        "use_rslora": False,
        "use_dora": False,
    }
