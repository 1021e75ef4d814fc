"""What a decoder is (DecoderConfig) and how it computes (ComputeConfig). Families read and write config.json files."""

from __future__ import annotations

from dataclasses import dataclass, fields, replace
from typing import Literal

from jaxagent.config.learner import LearnerConfig, Remat

RopeKind = Literal["default", "linear", "llama3", "yarn"]
StoredDtype = Literal["float32", "bfloat16", "float16"]
Activation = Literal["silu", "gelu_tanh"]


class UnsupportedModelError(ValueError):
    """This model, or an option in its config.json, is not one that our decoder computes."""


@dataclass(frozen=True)
class RopeConfig:
    """Rotary position embedding; which fields a kind reads stands in jaxagent/models/rope.py."""

    theta: float = 10_000.0
    kind: RopeKind = "default"
    factor: float = 1.0
    low_freq_factor: float = 1.0
    high_freq_factor: float = 4.0
    original_max_positions: int = 8192
    beta_fast: float = 32.0
    beta_slow: float = 1.0
    truncate: bool = True
    attention_factor: float = 1.0
    """Cosine and sine are multiplied by it."""


@dataclass(frozen=True)
class ComputeConfig:
    """How a decoder computes; none of it changes what is computed beyond rounding. Hashable, so static under jit."""

    dtype: Literal["float32", "bfloat16"] = "float32"
    """Of activations and matmul inputs. Norms, rotary embedding, softmax, router and logits stay float32."""
    remat: Remat = False
    """Recompute each layer in the backward pass: memory grows by one hidden state a layer, time by about a third.
    keep_attention: all of a layer but its attention, whose outputs are kept beside the hidden state. keep_products: all
    but attention and the matrix products of linear maps."""
    unroll_layers: int | Literal[True] = 1
    """Layers compiled one after the other in one step of the scan over layers; True: all of them."""
    attention: Literal["auto", "masked", "blockwise", "cudnn"] = "auto"
    """auto: on a GPU and in bfloat16, cudnn, where it needs a mask only up to cudnn_max_tokens a row; else masked up to
    masked_max_tokens, and blockwise beyond."""
    cudnn_max_tokens: int = 16_384
    """A mask is T x T x 2 bytes a row: half a GiB at this length."""
    masked_max_tokens: int = 128
    block_q: int = 128
    block_kv: int = 128
    """Tile of blockwise attention; memory beyond inputs and outputs is one tile of scores per head and row."""
    expert_block_rows: int | None = None
    """Rows that an expert computes at a time. None: the power of two below the mean number of tokens of an expert,
    between 8 and 512. On an H200, 8,192 tokens of 2,048, each to 8 of 128 experts of 768, in bfloat16: 13.8 ms at 128
    rows, 4.9 ms at 512."""

    expert_chunk_tokens: int | None = None
    """Tokens whose experts are computed at a time; None: all. A mixture holds a few times experts_per_token hidden
    states for each of them."""

    @classmethod
    def of(cls, config: LearnerConfig) -> ComputeConfig:
        """As the learner's config asks for."""
        return cls(
            dtype=config.compute_dtype,
            remat=config.remat,
            unroll_layers=True if config.unroll_layers else 1,
            expert_chunk_tokens=config.expert_chunk_tokens,
        )

    def __post_init__(self) -> None:
        tiles, experts = (
            ("masked_max_tokens", "cudnn_max_tokens", "block_q", "block_kv"),
            ("expert_block_rows", "expert_chunk_tokens"),
        )
        for name in ("unroll_layers", *tiles, *experts):
            value = getattr(self, name)
            if value is not None and value <= 0:
                raise ValueError(f"ComputeConfig.{name}={value} must be positive")


DEFAULT_COMPUTE = ComputeConfig()


@dataclass(frozen=True)
class DecoderConfig:
    """The architecture of a decoder: pre-norm blocks of grouped-query attention and a gated MLP or experts.

    Defaults are those of Llama; each family sets what it does otherwise.
    """

    family: str
    """The model_type of its config.json."""
    vocab_size: int
    hidden_size: int
    intermediate_size: int
    """Width of the MLP; of one expert in a mixture."""
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
    """RMSNorm over head_dim on queries and keys before the rotary embedding."""
    activation: Activation = "silu"
    num_experts: int = 0
    """0: an MLP in every layer; else a mixture of so many experts in every layer."""
    experts_per_token: int = 0
    norm_expert_weights: bool = True
    """The weights of a token's experts are divided by their sum."""
    sliding_window: int = 0
    """In a sliding layer a token sees the last so many tokens, itself included."""
    sliding_layers: tuple[bool, ...] = ()
    """Which layers slide; empty where none does."""
    sliding_rope: RopeConfig | None = None
    """Of the sliding layers; None: as in the others."""
    query_scale: float | None = None
    """Scores are multiplied by it; None: head_dim ** -0.5."""
    embedding_scale: float = 1.0
    norm_offset: float = 0.0
    """Added to every norm's stored scale."""
    sandwich_norms: bool = False
    """Attention and MLP are normalised on their way out as well."""
    max_positions: int = 32_768
    stored_dtype: StoredDtype = "float32"
    """What export_hf writes when no source folder says otherwise."""
    bos_token_id: int | None = None
    eos_token_ids: tuple[int, ...] = ()
    pad_token_id: int | None = None

    def __post_init__(self) -> None:
        for field in fields(self):
            value = getattr(self, field.name)
            if field.name.endswith(("_size", "_heads", "num_layers", "_dim")) and value <= 0:
                raise UnsupportedModelError(f"{field.name}={value} must be positive")
        if self.num_heads % self.num_kv_heads:
            raise UnsupportedModelError(
                f"num_kv_heads={self.num_kv_heads} must divide num_heads={self.num_heads} (grouped-query attention)"
            )
        if self.head_dim % 2:
            raise UnsupportedModelError(f"head_dim={self.head_dim} must be even: the rotary embedding turns pairs")
        if self.num_experts and not 0 < self.experts_per_token <= self.num_experts:
            raise UnsupportedModelError(
                f"experts_per_token={self.experts_per_token} must lie between 1 and num_experts={self.num_experts}"
            )
        if self.sliding_layers and len(self.sliding_layers) != self.num_layers:
            raise UnsupportedModelError(
                f"layer_types names {len(self.sliding_layers)} layers and num_hidden_layers={self.num_layers}"
            )
        if any(self.sliding_layers) and self.sliding_window <= 0:
            raise UnsupportedModelError(f"sliding_window={self.sliding_window} must be positive for sliding layers")

    @property
    def score_scale(self) -> float:
        return self.head_dim**-0.5 if self.query_scale is None else self.query_scale

    def with_tokens(self, *, bos: int | None, eos: tuple[int, ...], pad: int | None) -> DecoderConfig:
        """The same architecture with the special tokens of a tokenizer."""
        return replace(self, bos_token_id=bos, eos_token_ids=eos, pad_token_id=pad)
