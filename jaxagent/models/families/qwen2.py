"""Qwen2 and Qwen2.5: Llama with biases on queries, keys and values."""

from __future__ import annotations

from jaxagent.models.families.base import Family, read_dense, write_dense
from jaxagent.models.stored import MLP_RULES, PRE_NORM_RULE, SHARED_RULES

QWEN2 = Family(
    architecture="Qwen2ForCausalLM",
    model_type="qwen2",
    rules=(*SHARED_RULES, PRE_NORM_RULE, *MLP_RULES),
    read=lambda hf: read_dense(hf) | {"qkv_bias": True},
    write=write_dense,
    scratch=lambda cfg: {"qkv_bias": True},
)
