"""Llama 2 and 3, and what shares their architecture (SmolLM2, TinyLlama)."""

from __future__ import annotations

from typing import Any

from jaxagent.models.config import DecoderConfig
from jaxagent.models.families.base import Family, HFConfig, read_dense, write_dense
from jaxagent.models.stored import MLP_RULES, PRE_NORM_RULE, SHARED_RULES


def _read(hf: HFConfig) -> dict[str, Any]:
    bias = bool(hf.get("attention_bias", False))
    return read_dense(hf) | {"qkv_bias": bias, "output_bias": bias, "mlp_bias": bool(hf.get("mlp_bias", False))}


def _write(config: DecoderConfig) -> dict[str, Any]:
    return write_dense(config) | {"attention_bias": config.qkv_bias, "mlp_bias": config.mlp_bias}


LLAMA = Family(
    architecture="LlamaForCausalLM",
    model_type="llama",
    rules=(*SHARED_RULES, PRE_NORM_RULE, *MLP_RULES),
    read=_read,
    write=_write,
    scratch=lambda cfg: {},
)
