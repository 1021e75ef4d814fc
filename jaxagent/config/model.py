"""What the networks start from: random weights of a described shape, or a Hugging Face folder."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

from pydantic import Field, model_validator

from sandbox.config import Config


class ScratchModelConfig(Config):
    """A decoder that starts from random weights, described by its shape.

    Its tokenizer is trained on the scripted expert's texts of the train tasks.
    """

    kind: Literal["scratch"] = "scratch"
    family: Literal["llama", "qwen2", "qwen3", "qwen3_moe"] = "llama"
    vocab_size: int = Field(default=1024, gt=260)
    num_layers: int = Field(default=4, gt=0)
    hidden_size: int = Field(default=256, gt=0)
    intermediate_size: int = Field(default=768, gt=0)
    """Width of the feed-forward block; of one expert in a mixture of experts."""
    num_heads: int = Field(default=4, gt=0)
    num_kv_heads: int = Field(default=2, gt=0)
    head_dim: int | None = Field(default=None, gt=0)
    """None: hidden_size / num_heads."""
    num_experts: int | None = Field(default=None, gt=0)
    experts_per_token: int | None = Field(default=None, gt=0)

    @model_validator(mode="after")
    def _check(self) -> ScratchModelConfig:
        is_mixture = self.family == "qwen3_moe"
        if is_mixture != (self.num_experts is not None and self.experts_per_token is not None):
            raise ValueError("num_experts and experts_per_token belong to family qwen3_moe, which needs both")
        if self.num_heads % self.num_kv_heads:
            raise ValueError(f"num_kv_heads={self.num_kv_heads} does not divide num_heads={self.num_heads}")
        head_dim = self.head_dim or self.hidden_size // self.num_heads
        if head_dim < 32 or head_dim % 16:
            raise ValueError(
                f"hidden_size / num_heads (or head_dim) is {head_dim}; vLLM's attention takes multiples of 16 from 32"
            )
        return self


class PretrainedModelConfig(Config):
    """A Hugging Face model folder (config.json, *.safetensors, tokenizer files)."""

    kind: Literal["pretrained"] = "pretrained"
    path: Path


ModelConfig = Annotated[ScratchModelConfig | PretrainedModelConfig, Field(discriminator="kind")]
