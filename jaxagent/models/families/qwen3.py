"""Qwen3: queries and keys are normalised, and heads have a width of their own."""

from __future__ import annotations

from typing import Any

from jaxagent.models.config import DecoderConfig
from jaxagent.models.families.base import Family, HFConfig, read_dense, write_dense
from jaxagent.models.stored import MLP_RULES, PRE_NORM_RULE, SHARED_RULES


def _read(hf: HFConfig) -> dict[str, Any]:
    # transformers assumes 128 where the file is silent, whatever hidden_size / heads is.
    return read_attention(hf) | {"head_dim": int(hf.get("head_dim") or 128)}


def read_attention(hf: HFConfig) -> dict[str, Any]:
    """Attention as in Qwen3, which the mixture of experts shares."""
    bias = bool(hf.get("attention_bias", False))
    return read_dense(hf) | {"qk_norm": True, "qkv_bias": bias, "output_bias": bias}


def write_attention(config: DecoderConfig) -> dict[str, Any]:
    return write_dense(config) | {"attention_bias": config.qkv_bias}


QWEN3 = Family(
    architecture="Qwen3ForCausalLM",
    model_type="qwen3",
    rules=(*SHARED_RULES, PRE_NORM_RULE, *MLP_RULES),
    read=_read,
    write=write_attention,
    scratch=lambda cfg: {"qk_norm": True},
)
