"""What a decoder is (DecoderConfig, from a Hugging Face config.json and back) and how it computes (ComputeConfig)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from typing import Any, Literal

from jaxagent.config import ScratchModelConfig

Family = Literal["llama", "qwen2", "qwen3"]

ARCHITECTURES: dict[str, Family] = {
    "LlamaForCausalLM": "llama",
    "Qwen2ForCausalLM": "qwen2",
    "Qwen3ForCausalLM": "qwen3",
}
ROPE_KINDS = ("default", "linear", "llama3")
STORED_DTYPES = ("float32", "bfloat16", "float16")


class UnsupportedModelError(ValueError):
    """This model, or an option in its config.json, is not one that our decoder computes."""


@dataclass(frozen=True)
class RopeConfig:
    """Rotary position embedding; `default` uses theta alone, `linear` adds factor, `llama3` uses every field."""

    theta: float = 10_000.0
    kind: Literal["default", "linear", "llama3"] = "default"
    factor: float = 1.0
    low_freq_factor: float = 1.0
    high_freq_factor: float = 4.0
    original_max_positions: int = 8192


@dataclass(frozen=True)
class ComputeConfig:
    """How a decoder computes; none of it changes what is computed beyond rounding. Hashable, so static under jit."""

    dtype: Literal["float32", "bfloat16"] = "float32"
    """Of activations and matmul inputs. Norms, rotary embedding, softmax and logits stay float32."""
    remat: bool = False
    """Recompute each layer in the backward pass: memory grows by one hidden state a layer, time by about a third."""
    unroll_layers: int = 1
    """Layers compiled one after the other in one step of the scan over layers."""
    attention: Literal["auto", "masked", "blockwise"] = "auto"
    """auto: masked up to masked_max_tokens, else blockwise."""
    masked_max_tokens: int = 128
    block_q: int = 128
    block_kv: int = 128
    """Tile of blockwise attention; memory beyond inputs and outputs is one tile of scores per head and row."""

    def __post_init__(self) -> None:
        for name in ("unroll_layers", "masked_max_tokens", "block_q", "block_kv"):
            if getattr(self, name) <= 0:
                raise ValueError(f"ComputeConfig.{name}={getattr(self, name)} must be positive")


DEFAULT_COMPUTE = ComputeConfig()


@dataclass(frozen=True)
class DecoderConfig:
    """The architecture of a dense decoder: pre-norm blocks of grouped-query attention and a SwiGLU MLP."""

    family: Family
    vocab_size: int
    hidden_size: int
    intermediate_size: int
    num_layers: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    rope: RopeConfig = RopeConfig()
    rms_norm_eps: float = 1e-6
    tie_embeddings: bool = False
    qkv_bias: bool = False
    output_bias: bool = False
    mlp_bias: bool = False
    qk_norm: bool = False
    """RMSNorm over head_dim on queries and keys before the rotary embedding (Qwen3)."""
    max_positions: int = 32_768
    stored_dtype: Literal["float32", "bfloat16", "float16"] = "float32"
    """What export_hf writes when no source folder says otherwise."""
    bos_token_id: int | None = None
    eos_token_ids: tuple[int, ...] = ()
    pad_token_id: int | None = None

    def __post_init__(self) -> None:
        for field in fields(self):
            value = getattr(self, field.name)
            if field.name.endswith(("_size", "_heads", "_layers", "_dim")) and value <= 0:
                raise UnsupportedModelError(f"{field.name}={value} must be positive")
        if self.num_heads % self.num_kv_heads:
            raise UnsupportedModelError(
                f"num_kv_heads={self.num_kv_heads} must divide num_heads={self.num_heads} (grouped-query attention)"
            )
        if self.head_dim % 2:
            raise UnsupportedModelError(f"head_dim={self.head_dim} must be even: the rotary embedding turns pairs")

    @classmethod
    def from_hf(cls, hf: Mapping[str, Any]) -> DecoderConfig:
        """Read the content of a config.json, as transformers 4 or 5 writes it.

        Raises UnsupportedModelError for another architecture, or for an option that would change the result.
        """
        family = _family(hf)
        _refuse_unsupported(hf)
        num_heads = int(hf["num_attention_heads"])
        hidden_size = int(hf["hidden_size"])
        attention_bias = bool(hf.get("attention_bias", False))
        # What transformers assumes where the file is silent: qwen3 has heads of 128, the others share hidden_size out.
        default_head_dim = 128 if family == "qwen3" else hidden_size // num_heads
        return cls(
            family=family,
            vocab_size=int(hf["vocab_size"]),
            hidden_size=hidden_size,
            intermediate_size=int(hf["intermediate_size"]),
            num_layers=int(hf["num_hidden_layers"]),
            num_heads=num_heads,
            num_kv_heads=int(hf.get("num_key_value_heads") or num_heads),
            head_dim=int(hf.get("head_dim") or default_head_dim),
            rope=_rope(hf),
            rms_norm_eps=float(hf.get("rms_norm_eps", 1e-6)),
            tie_embeddings=bool(hf.get("tie_word_embeddings", False)),
            qkv_bias=family == "qwen2" or attention_bias,
            output_bias=family != "qwen2" and attention_bias,
            mlp_bias=family == "llama" and bool(hf.get("mlp_bias", False)),
            qk_norm=family == "qwen3",
            max_positions=int(hf.get("max_position_embeddings", 32_768)),
            stored_dtype=_stored_dtype(hf),
            bos_token_id=hf.get("bos_token_id"),
            eos_token_ids=_as_ids(hf.get("eos_token_id")),
            pad_token_id=hf.get("pad_token_id"),
        )

    @classmethod
    def from_scratch(cls, cfg: ScratchModelConfig) -> DecoderConfig:
        """The architecture of a small model of our own, embeddings tied."""
        family: Family | None = next((known for known in ARCHITECTURES.values() if known == cfg.family), None)
        if family is None:
            raise UnsupportedModelError(
                f"model.family={cfg.family!r} is not supported; supported are {', '.join(ARCHITECTURES.values())}"
            )
        if cfg.head_dim is None and cfg.hidden_size % cfg.num_heads:
            raise UnsupportedModelError(
                f"model.num_heads={cfg.num_heads} must divide model.hidden_size={cfg.hidden_size}; "
                "change one, or set model.head_dim"
            )
        return cls(
            family=family,
            vocab_size=cfg.vocab_size,
            hidden_size=cfg.hidden_size,
            intermediate_size=cfg.intermediate_size,
            num_layers=cfg.num_layers,
            num_heads=cfg.num_heads,
            num_kv_heads=cfg.num_kv_heads,
            head_dim=cfg.head_dim or cfg.hidden_size // cfg.num_heads,
            tie_embeddings=True,
            qkv_bias=cfg.family == "qwen2",
            qk_norm=cfg.family == "qwen3",
        )

    def to_hf(self) -> dict[str, Any]:
        """The config.json that transformers (4 and 5) and vLLM read back as this model."""
        architecture = next(name for name, family in ARCHITECTURES.items() if family == self.family)
        hf: dict[str, Any] = {
            "architectures": [architecture],
            "model_type": self.family,
            "vocab_size": self.vocab_size,
            "hidden_size": self.hidden_size,
            "intermediate_size": self.intermediate_size,
            "num_hidden_layers": self.num_layers,
            "num_attention_heads": self.num_heads,
            "num_key_value_heads": self.num_kv_heads,
            "head_dim": self.head_dim,
            "hidden_act": "silu",
            "rms_norm_eps": self.rms_norm_eps,
            "tie_word_embeddings": self.tie_embeddings,
            "max_position_embeddings": self.max_positions,
            "initializer_range": 0.02,
            "use_cache": True,
            "torch_dtype": self.stored_dtype,
            "bos_token_id": self.bos_token_id,
            "eos_token_id": self._eos_token_id(),
            "pad_token_id": self.pad_token_id,
            "rope_theta": self.rope.theta,
            "rope_scaling": self._rope_scaling(),
        }
        if self.family != "qwen2":
            hf["attention_bias"] = self.qkv_bias
        if self.family == "llama":
            hf["mlp_bias"] = self.mlp_bias
        return hf

    def with_tokens(self, *, bos: int | None, eos: tuple[int, ...], pad: int | None) -> DecoderConfig:
        """The same architecture with the special tokens of a tokenizer."""
        return replace(self, bos_token_id=bos, eos_token_ids=eos, pad_token_id=pad)

    def _eos_token_id(self) -> int | list[int] | None:
        """One id stands alone, as configs are commonly written."""
        ids = list(self.eos_token_ids)
        return ids if len(ids) > 1 else next(iter(ids), None)

    def _rope_scaling(self) -> dict[str, Any] | None:
        rope = self.rope
        if rope.kind == "default":
            return None
        scaling: dict[str, Any] = {"rope_type": rope.kind, "factor": rope.factor}
        if rope.kind == "llama3":
            scaling |= {
                "low_freq_factor": rope.low_freq_factor,
                "high_freq_factor": rope.high_freq_factor,
                "original_max_position_embeddings": rope.original_max_positions,
            }
        return scaling


def _family(hf: Mapping[str, Any]) -> Family:
    names = hf.get("architectures") or []
    for name in names:
        if name in ARCHITECTURES:
            return ARCHITECTURES[name]
    if not names and hf.get("model_type") in ARCHITECTURES.values():
        return hf["model_type"]
    raise UnsupportedModelError(
        f"config.json: architectures={names!r} (model_type={hf.get('model_type')!r}) is not supported; "
        f"supported are {', '.join(ARCHITECTURES)}. Use a model of one of these architectures."
    )


def _refuse_unsupported(hf: Mapping[str, Any]) -> None:
    """Options that change the computation in ways our decoder doesn't follow are errors, never ignored."""
    activation = hf.get("hidden_act", "silu")
    layer_types = sorted(set(hf.get("layer_types") or ["full_attention"]))
    sliding, quantization = hf.get("use_sliding_window"), hf.get("quantization_config")
    checks: list[tuple[str, object, bool, str]] = [
        ("hidden_act", activation, activation in ("silu", "swish"), "silu"),
        ("layer_types", layer_types, layer_types == ["full_attention"], "full_attention only"),
        ("use_sliding_window", sliding, not sliding, "false"),
        ("quantization_config", quantization, not quantization, "none; store the model in bfloat16 or float32"),
    ]
    for name, value, fine, allowed in checks:
        if not fine:
            raise UnsupportedModelError(f"config.json: {name}={value!r} is not supported; allowed: {allowed}")


def _rope(hf: Mapping[str, Any]) -> RopeConfig:
    """transformers 5 writes `rope_parameters`; before, `rope_theta` and `rope_scaling` stood side by side."""
    scaling: Mapping[str, Any] = hf.get("rope_parameters") or hf.get("rope_scaling") or {}
    kind = scaling.get("rope_type", scaling.get("type", "default"))
    if kind not in ROPE_KINDS:
        raise UnsupportedModelError(
            f"config.json: rope type {kind!r} is not supported; supported are {', '.join(ROPE_KINDS)}"
        )
    partial = scaling.get("partial_rotary_factor", hf.get("partial_rotary_factor", 1.0))
    if partial not in (None, 1.0):
        raise UnsupportedModelError(f"config.json: partial_rotary_factor={partial} is not supported; allowed: 1.0")
    original = scaling.get("original_max_position_embeddings") or hf.get("original_max_position_embeddings")
    return RopeConfig(
        theta=float(scaling.get("rope_theta") or hf.get("rope_theta") or 10_000.0),
        kind=kind,
        factor=float(scaling.get("factor", 1.0)),
        low_freq_factor=float(scaling.get("low_freq_factor", 1.0)),
        high_freq_factor=float(scaling.get("high_freq_factor", 4.0)),
        original_max_positions=int(original or hf.get("max_position_embeddings", 8192)),
    )


def _stored_dtype(hf: Mapping[str, Any]) -> Literal["float32", "bfloat16", "float16"]:
    stored = hf.get("dtype") or hf.get("torch_dtype") or "float32"
    if stored not in STORED_DTYPES:
        raise UnsupportedModelError(
            f"config.json: dtype={stored!r} is not supported; supported are {', '.join(STORED_DTYPES)}"
        )
    return stored


def _as_ids(value: int | list[int] | None) -> tuple[int, ...]:
    if value is None:
        return ()
    return (value,) if isinstance(value, int) else tuple(value)
