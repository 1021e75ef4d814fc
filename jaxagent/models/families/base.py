"""What a family of decoders is, and the parts of config.json that families write alike."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, get_args

from jaxagent.config.model import ScratchModelConfig
from jaxagent.models.config import DecoderConfig, RopeConfig, RopeKind, StoredDtype, UnsupportedModelError
from jaxagent.models.stored import Rule

HFConfig = Mapping[str, Any]
"""The content of a config.json, as transformers 4 or 5 writes it."""


@dataclass(frozen=True, kw_only=True)
class Family:
    """One architecture of Hugging Face. A file beside this one makes each, and jaxagent/models/families lists them."""

    architecture: str
    """As config.json's `architectures` names it."""
    model_type: str
    rules: tuple[Rule, ...]
    """Every parameter that a decoder of this family can have, and its stored name."""
    read: Callable[[HFConfig], dict[str, Any]]
    """The fields of DecoderConfig in which the family differs from `read_shared`; refuses what would compute something
    else."""
    write: Callable[[DecoderConfig], dict[str, Any]]
    """The same for config.json and `write_shared`."""
    scratch: Callable[[ScratchModelConfig], dict[str, Any]] | None = None
    """The same for a small model from random weights; None: the family is not offered for that."""


def read_shared(hf: HFConfig) -> dict[str, Any]:
    """The fields of DecoderConfig that every family reads alike."""
    num_heads, hidden_size = int(hf["num_attention_heads"]), int(hf["hidden_size"])
    return {
        "vocab_size": int(hf["vocab_size"]),
        "hidden_size": hidden_size,
        "intermediate_size": int(hf["intermediate_size"]),
        "num_layers": int(hf["num_hidden_layers"]),
        "num_heads": num_heads,
        "num_kv_heads": int(hf.get("num_key_value_heads") or num_heads),
        "head_dim": int(hf.get("head_dim") or hidden_size // num_heads),
        "rms_norm_eps": float(hf.get("rms_norm_eps", 1e-6)),
        "tie_embeddings": bool(hf.get("tie_word_embeddings", False)),
        "max_positions": int(hf.get("max_position_embeddings", 32_768)),
        "stored_dtype": _stored_dtype(hf),
        "bos_token_id": hf.get("bos_token_id"),
        "eos_token_ids": _as_ids(hf.get("eos_token_id")),
        "pad_token_id": hf.get("pad_token_id"),
    }


def write_shared(config: DecoderConfig) -> dict[str, Any]:
    """The entries of config.json that every family writes alike; transformers (4 and 5) and vLLM read them."""
    eos = list(config.eos_token_ids)
    return {
        "vocab_size": config.vocab_size,
        "hidden_size": config.hidden_size,
        "intermediate_size": config.intermediate_size,
        "num_hidden_layers": config.num_layers,
        "num_attention_heads": config.num_heads,
        "num_key_value_heads": config.num_kv_heads,
        "head_dim": config.head_dim,
        "rms_norm_eps": config.rms_norm_eps,
        "tie_word_embeddings": config.tie_embeddings,
        "max_position_embeddings": config.max_positions,
        "initializer_range": 0.02,
        "use_cache": True,
        "torch_dtype": config.stored_dtype,
        "bos_token_id": config.bos_token_id,
        "eos_token_id": eos if len(eos) > 1 else next(iter(eos), None),  # one id stands alone, as is common
        "pad_token_id": config.pad_token_id,
    }


def read_dense(hf: HFConfig) -> dict[str, Any]:
    """For families with SwiGLU and full attention: refuses what is neither, and reads the one rotary embedding."""
    activation = hf.get("hidden_act", "silu")
    layer_types = sorted(set(hf.get("layer_types") or ["full_attention"]))
    sliding = hf.get("use_sliding_window")
    refuse("hidden_act", activation, activation in ("silu", "swish"), "silu")
    refuse("layer_types", layer_types, layer_types == ["full_attention"], "full_attention only")
    refuse("use_sliding_window", sliding, not sliding, "false")
    return {"rope": read_rope(hf)}


def write_dense(config: DecoderConfig) -> dict[str, Any]:
    return {"hidden_act": "silu", "rope_theta": config.rope.theta, "rope_scaling": write_rope_scaling(config.rope)}


def refuse(name: str, value: object, fine: bool, allowed: str) -> None:
    """Options that change the computation in ways our decoder doesn't follow are errors, never ignored."""
    if not fine:
        raise UnsupportedModelError(f"config.json: {name}={value!r} is not supported; allowed: {allowed}")


def read_rope(hf: HFConfig, *, theta: float = 10_000.0) -> RopeConfig:
    """transformers 5 writes `rope_parameters`; before, `rope_theta` and `rope_scaling` stood side by side."""
    scaling: Mapping[str, Any] = hf.get("rope_parameters") or hf.get("rope_scaling") or {}
    kind, kinds = scaling.get("rope_type", scaling.get("type", "default")), get_args(RopeKind)
    if kind not in kinds:
        raise UnsupportedModelError(f"config.json: rope type {kind!r} is not supported; supported: {', '.join(kinds)}")
    partial = scaling.get("partial_rotary_factor", hf.get("partial_rotary_factor", 1.0))
    refuse("partial_rotary_factor", partial, partial in (None, 1.0), "1.0")
    original = scaling.get("original_max_position_embeddings") or hf.get("original_max_position_embeddings")
    return RopeConfig(
        theta=float(scaling.get("rope_theta") or hf.get("rope_theta") or theta),
        kind=kind,
        factor=float(scaling.get("factor") or 1.0),
        low_freq_factor=float(scaling.get("low_freq_factor", 1.0)),
        high_freq_factor=float(scaling.get("high_freq_factor", 4.0)),
        original_max_positions=int(original or hf.get("max_position_embeddings", 8192)),
        beta_fast=float(scaling.get("beta_fast") or 32.0),
        beta_slow=float(scaling.get("beta_slow") or 1.0),
        truncate=bool(scaling.get("truncate", True)),
        attention_factor=_yarn_attention_factor(scaling) if kind == "yarn" else 1.0,
    )


def write_rope_scaling(rope: RopeConfig) -> dict[str, Any] | None:
    """What config.json's rope_scaling says of it; None for the default kind."""
    if rope.kind == "default":
        return None
    scaling: dict[str, Any] = {"rope_type": rope.kind, "factor": rope.factor}
    if rope.kind in ("llama3", "yarn"):
        scaling["original_max_position_embeddings"] = rope.original_max_positions
    if rope.kind == "llama3":
        scaling |= {"low_freq_factor": rope.low_freq_factor, "high_freq_factor": rope.high_freq_factor}
    if rope.kind == "yarn":
        scaling |= {"beta_fast": rope.beta_fast, "beta_slow": rope.beta_slow, "truncate": rope.truncate}
        scaling["attention_factor"] = rope.attention_factor
    return scaling


def _yarn_attention_factor(scaling: Mapping[str, Any]) -> float:
    """Given, or 0.1 ln(factor) + 1 (arXiv 2309.00071, Eq. 22), with DeepSeek's two coefficients where both stand."""
    if scaling.get("attention_factor") is not None:
        return float(scaling["attention_factor"])
    factor, mscale, mscale_all_dim = (float(scaling.get(key) or 0) for key in ("factor", "mscale", "mscale_all_dim"))

    def temperature(coefficient: float) -> float:
        return 0.1 * coefficient * math.log(factor) + 1.0 if factor > 1 else 1.0

    return temperature(mscale) / temperature(mscale_all_dim) if mscale and mscale_all_dim else temperature(1.0)


def _stored_dtype(hf: HFConfig) -> StoredDtype:
    stored, known = hf.get("dtype") or hf.get("torch_dtype") or "float32", get_args(StoredDtype)
    refuse("dtype", stored, stored in known, ", ".join(known))
    return stored


def _as_ids(value: int | list[int] | None) -> tuple[int, ...]:
    if value is None:
        return ()
    return (value,) if isinstance(value, int) else tuple(value)
