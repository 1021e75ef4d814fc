"""Qwen3-MoE: Qwen3's attention, and a mixture of experts in place of every MLP."""

from __future__ import annotations

from typing import Any

from jaxagent.config.model import ScratchModelConfig
from jaxagent.models.config import DecoderConfig
from jaxagent.models.families.base import Family, HFConfig, refuse
from jaxagent.models.families.qwen3 import read_attention, write_attention
from jaxagent.models.stored import EXPERT_RULES, PRE_NORM_RULE, SHARED_RULES


def _read(hf: HFConfig) -> dict[str, Any]:
    step, dense = hf.get("decoder_sparse_step", 1), hf.get("mlp_only_layers") or []
    refuse("decoder_sparse_step", step, step == 1, "1: experts in every layer")
    refuse("mlp_only_layers", dense, not dense, "none: experts in every layer")
    return read_attention(hf) | {
        "intermediate_size": int(hf["moe_intermediate_size"]),
        "num_experts": int(hf.get("num_experts") or hf["num_local_experts"]),
        "experts_per_token": int(hf["num_experts_per_tok"]),
        "norm_expert_weights": bool(hf.get("norm_topk_prob", False)),
    }


def _write(config: DecoderConfig) -> dict[str, Any]:
    return write_attention(config) | {
        "moe_intermediate_size": config.intermediate_size,
        "num_experts": config.num_experts,
        "num_experts_per_tok": config.experts_per_token,
        "norm_topk_prob": config.norm_expert_weights,
        "decoder_sparse_step": 1,
        "mlp_only_layers": [],
    }


def _scratch(cfg: ScratchModelConfig) -> dict[str, Any]:
    return {"qk_norm": True, "num_experts": cfg.num_experts, "experts_per_token": cfg.experts_per_token}


QWEN3_MOE = Family(
    architecture="Qwen3MoeForCausalLM",
    model_type="qwen3_moe",
    rules=(*SHARED_RULES, PRE_NORM_RULE, *EXPERT_RULES),
    read=_read,
    write=_write,
    scratch=_scratch,
)
