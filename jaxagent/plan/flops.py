"""Floating-point operations of a decoder's passes over full rows, from its shape.

Attention is causal within a row that holds one trajectory: the most that packed rows can cost. Norms, softmax and the
optimizer are left out. Gradients cost twice the forward pass.
"""

from __future__ import annotations

from dataclasses import dataclass

from jaxagent.config.learner import LearnerConfig
from jaxagent.models.config import DecoderConfig


@dataclass(frozen=True, slots=True)
class Flops:
    """Of one step."""

    model: float
    """What the mathematics asks for: MFU counts these."""
    hardware: float
    """With what is computed a second time to save memory."""


def forward_flops(shape: DecoderConfig, *, tokens: int, row_tokens: int, has_head: bool) -> tuple[float, float, float]:
    """(layers without attention scores, attention scores, head) of one forward pass over `tokens` tokens."""
    heads = shape.num_heads * shape.head_dim
    matrices = shape.hidden_size * (2 * heads + 2 * shape.num_kv_heads * shape.head_dim)
    widths = shape.intermediate_size * (shape.experts_per_token or 1)
    matrices += 3 * shape.hidden_size * widths + shape.hidden_size * shape.num_experts
    slides = shape.sliding_layers or (False,) * shape.num_layers
    seen = sum(_mean_seen(row_tokens, shape.sliding_window if slide else row_tokens) for slide in slides)
    layers = 2.0 * tokens * shape.num_layers * matrices
    return layers, 4.0 * tokens * heads * seen, 2.0 * tokens * shape.hidden_size * shape.vocab_size * has_head


def _mean_seen(row_tokens: int, window: int) -> float:
    """Keys that a token of a row sees in the mean: (T + 1) / 2 without a window."""
    window = min(window, row_tokens)
    return (window * (window + 1) / 2 + (row_tokens - window) * window) / row_tokens


def step_flops(name: str, shape: DecoderConfig, config: LearnerConfig, *, rows: int) -> Flops:
    """Of the step of that name (see jaxagent.plan.lowering) over `rows` rows, on all devices together."""
    tokens = rows * config.row_tokens
    layers, scores, head = forward_flops(
        shape, tokens=tokens, row_tokens=config.row_tokens, has_head=name in ("actor", "logprobs")
    )
    forward = layers + scores + head
    if name in ("targets", "logprobs"):
        return Flops(forward, forward)
    again = head + scores / 2  # logits by chunk, scores by tile
    if config.remat == "keep_products":
        again += 6.0 * tokens * shape.num_layers * shape.hidden_size * shape.intermediate_size * shape.experts_per_token
    elif config.remat:
        again += layers + (0.0 if config.remat == "keep_attention" else scores)
    return Flops(3 * forward, 3 * forward + again)
