"""The supported families, and the way from a config.json or a scratch config to a DecoderConfig and back."""

from __future__ import annotations

from typing import Any

from jaxagent.config.model import ScratchModelConfig
from jaxagent.models.config import DecoderConfig, UnsupportedModelError
from jaxagent.models.families.base import Family, HFConfig, read_shared, refuse, write_shared
from jaxagent.models.families.gemma3 import GEMMA3
from jaxagent.models.families.llama import LLAMA
from jaxagent.models.families.qwen2 import QWEN2
from jaxagent.models.families.qwen3 import QWEN3
from jaxagent.models.families.qwen3_moe import QWEN3_MOE

FAMILIES: dict[str, Family] = {family.model_type: family for family in (LLAMA, QWEN2, QWEN3, QWEN3_MOE, GEMMA3)}


def from_hf(hf: HFConfig) -> DecoderConfig:
    """Read the content of a config.json, as transformers 4 or 5 writes it.

    Raises UnsupportedModelError for another architecture, or for an option that would change the result.
    """
    family = _family_of(hf)
    quantization = hf.get("quantization_config")
    refuse("quantization_config", quantization, not quantization, "none; store the model in bfloat16 or float32")
    return DecoderConfig(family=family.model_type, **read_shared(hf) | family.read(hf))


def to_hf(config: DecoderConfig) -> dict[str, Any]:
    """The config.json that transformers (4 and 5) and vLLM read back as this model."""
    family = FAMILIES[config.family]
    named = {"architectures": [family.architecture], "model_type": family.model_type}
    return named | write_shared(config) | family.write(config)


def from_scratch(cfg: ScratchModelConfig) -> DecoderConfig:
    """The architecture of a small model of our own, embeddings tied."""
    offered = {name: family.scratch for name, family in FAMILIES.items() if family.scratch is not None}
    if cfg.family not in offered:
        raise UnsupportedModelError(f"model.family={cfg.family!r} is not supported; supported: {', '.join(offered)}")
    if cfg.head_dim is None and cfg.hidden_size % cfg.num_heads:
        raise UnsupportedModelError(
            f"model.num_heads={cfg.num_heads} must divide model.hidden_size={cfg.hidden_size}; "
            "change one, or set model.head_dim"
        )
    shape: dict[str, Any] = {
        "vocab_size": cfg.vocab_size,
        "hidden_size": cfg.hidden_size,
        "intermediate_size": cfg.intermediate_size,
        "num_layers": cfg.num_layers,
        "num_heads": cfg.num_heads,
        "num_kv_heads": cfg.num_kv_heads,
        "head_dim": cfg.head_dim or cfg.hidden_size // cfg.num_heads,
        "tie_embeddings": True,
    }
    return DecoderConfig(family=cfg.family, **shape | offered[cfg.family](cfg))


def _family_of(hf: HFConfig) -> Family:
    names = hf.get("architectures") or []
    for family in FAMILIES.values():
        if family.architecture in names or (not names and hf.get("model_type") == family.model_type):
            return family
    raise UnsupportedModelError(
        f"config.json: architectures={names!r} (model_type={hf.get('model_type')!r}) is not supported; supported are "
        f"{', '.join(family.architecture for family in FAMILIES.values())}. Use a model of one of these architectures."
    )
