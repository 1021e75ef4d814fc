"""Gemma 3, the text models: sliding and full layers with rotary embeddings of their own, and norms on both sides."""

from __future__ import annotations

from typing import Any

from jaxagent.models.config import DecoderConfig, RopeConfig
from jaxagent.models.families.base import Family, HFConfig, read_rope, refuse, write_rope_scaling
from jaxagent.models.stored import MLP_RULES, SANDWICH_NORM_RULES, SHARED_RULES

_SLIDING, _FULL = "sliding_attention", "full_attention"
_THETA, _SLIDING_THETA = 1_000_000.0, 10_000.0


def _read(hf: HFConfig) -> dict[str, Any]:
    activation = hf.get("hidden_activation") or "gelu_pytorch_tanh"
    refuse("hidden_activation", activation, activation == "gelu_pytorch_tanh", "gelu_pytorch_tanh")
    for name in ("final_logit_softcapping", "attn_logit_softcapping", "use_bidirectional_attention"):
        refuse(name, hf.get(name), not hf.get(name), "none")
    rope, sliding_rope = _ropes(hf)
    bias = bool(hf.get("attention_bias", False))
    return {
        "head_dim": int(hf.get("head_dim") or 256),
        "tie_embeddings": bool(hf.get("tie_word_embeddings", True)),
        "max_positions": int(hf.get("max_position_embeddings", 131_072)),
        "activation": "gelu_tanh",
        "qk_norm": True,
        "qkv_bias": bias,
        "output_bias": bias,
        "query_scale": float(hf.get("query_pre_attn_scalar", 256)) ** -0.5,
        "embedding_scale": int(hf["hidden_size"]) ** 0.5,
        "norm_offset": 1.0,
        "sandwich_norms": True,
        "sliding_window": int(hf.get("sliding_window") or 4096),
        "sliding_layers": _sliding_layers(hf),
        "rope": rope,
        "sliding_rope": sliding_rope,
    }


def _sliding_layers(hf: HFConfig) -> tuple[bool, ...]:
    """transformers 5 lists the layers; before, every sliding_window_pattern-th was a full one."""
    types = hf.get("layer_types")
    if types is None:
        pattern = int(hf.get("sliding_window_pattern") or 6)
        return tuple((layer + 1) % pattern != 0 for layer in range(int(hf["num_hidden_layers"])))
    refuse("layer_types", sorted(set(types)), set(types) <= {_SLIDING, _FULL}, f"{_SLIDING} and {_FULL}")
    return tuple(kind == _SLIDING for kind in types)


def _ropes(hf: HFConfig) -> tuple[RopeConfig, RopeConfig]:
    """Of full and of sliding layers; the latter are never scaled."""
    both = hf.get("rope_parameters") or {}
    if _FULL in both or _SLIDING in both:
        full, sliding = both.get(_FULL) or {}, both.get(_SLIDING) or {}
        lengths = {"max_position_embeddings": hf.get("max_position_embeddings", 131_072)}
        return (
            read_rope({"rope_parameters": full, **lengths}, theta=_THETA),
            read_rope({"rope_parameters": sliding, **lengths}, theta=_SLIDING_THETA),
        )
    theta = float(hf.get("rope_local_base_freq") or _SLIDING_THETA)
    full = read_rope({"max_position_embeddings": 131_072, **hf}, theta=_THETA)
    return full, RopeConfig(theta=theta, original_max_positions=full.original_max_positions)


def _write(config: DecoderConfig) -> dict[str, Any]:
    assert config.sliding_rope is not None and config.query_scale is not None
    scalar = config.query_scale**-2
    return {
        "hidden_activation": "gelu_pytorch_tanh",
        "attention_bias": config.qkv_bias,
        "query_pre_attn_scalar": round(scalar) if abs(scalar - round(scalar)) < 1e-6 else scalar,
        "sliding_window": config.sliding_window,
        "layer_types": [_SLIDING if slides else _FULL for slides in config.sliding_layers],
        "rope_theta": config.rope.theta,
        "rope_local_base_freq": config.sliding_rope.theta,
        "rope_scaling": write_rope_scaling(config.rope),
        "final_logit_softcapping": None,
        "attn_logit_softcapping": None,
    }


GEMMA3 = Family(
    architecture="Gemma3ForCausalLM",
    model_type="gemma3_text",
    rules=(*SHARED_RULES, *SANDWICH_NORM_RULES, *MLP_RULES),
    read=_read,
    write=_write,
)
