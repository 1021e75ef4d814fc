"""What fills a device: state that stays, and what a step needs beside it."""

from __future__ import annotations

from dataclasses import asdict, dataclass

from jaxagent.config.learner import LearnerConfig
from jaxagent.mesh.devices import token_shards
from jaxagent.models.config import DecoderConfig
from jaxagent.plan.facts import Facts

BYTES = {"float32": 4, "bfloat16": 2}


@dataclass(frozen=True, slots=True, kw_only=True)
class Memory:
    """Bytes of one device while one step runs. The sum is XLA's: state and batch by their shapes, and the step's own
    memory as the compiler laid it out; gradients, activations and logits are its known parts, workspace the rest."""

    parameters: int
    optimizer: int
    batch: int
    gradients: int
    activations: int
    """Kept from the forward pass for the backward pass."""
    logits: int
    experts: int
    """Slots of the tokens whose experts are computed at a time."""
    workspace: int

    @property
    def total(self) -> int:
        return sum(asdict(self).values())

    @property
    def state(self) -> int:
        """What splitting parameters makes smaller."""
        return self.parameters + self.optimizer + self.gradients

    @property
    def of_tokens(self) -> int:
        """What fewer tokens on a device make smaller."""
        return self.activations + self.experts + self.workspace


def memory_of(name: str, facts: Facts, shape: DecoderConfig, config: LearnerConfig) -> Memory:
    """While the step of that name runs; the state of both networks stays where it is."""
    reference = facts.actor.parameters if config.ppo.kl_coef > 0 else 0
    trained = {"actor": facts.actor, "critic": facts.critic}.get(name)
    left = facts.steps[name].extra_bytes
    parts = {}
    known = {
        "gradients": trained.gradients if trained else 0,
        "activations": activation_bytes(shape, config) if trained else 0,
        "logits": logits_bytes(shape, config) if name == "actor" else 0,
        "experts": experts_bytes(shape, config),
    }
    for part, size in known.items():
        parts[part] = min(size, left)
        left -= parts[part]
    return Memory(
        parameters=facts.actor.parameters + facts.critic.parameters + facts.frozen_bytes + reference,
        optimizer=facts.actor.optimizer + facts.critic.optimizer,
        batch=facts.batch_bytes,
        workspace=left,
        **parts,
    )


def activation_bytes(shape: DecoderConfig, config: LearnerConfig) -> int:
    """Hidden states that recomputed layers start from, and what else they keep; without recomputation an estimate of
    what every layer keeps: its inputs of matrix products and its gate."""
    tokens = config.rows_per_microbatch * config.row_tokens // token_shards(config.mesh)
    width = BYTES[config.compute_dtype]
    heads = shape.num_heads * shape.head_dim // config.mesh.tensor
    layer = shape.hidden_size * width
    if config.remat in ("keep_attention", "keep_products"):
        layer += heads * width + shape.num_heads // config.mesh.tensor * 4
    if config.remat == "keep_products":
        kv_heads = shape.num_kv_heads * shape.head_dim // config.mesh.tensor
        mlp = 0 if shape.num_experts else shape.intermediate_size // config.mesh.tensor
        layer += (heads + 2 * kv_heads + shape.hidden_size + 2 * mlp) * width
    if config.remat is False:
        widths = shape.intermediate_size * (shape.experts_per_token or 1) // config.mesh.tensor
        layer += (3 * shape.hidden_size + 4 * heads + 3 * widths) * width
    return shape.num_layers * tokens * layer


def logits_bytes(shape: DecoderConfig, config: LearnerConfig) -> int:
    """Logits of a chunk in float32, their softmax and their gradient."""
    tokens = config.rows_per_microbatch * config.row_tokens // token_shards(config.mesh)
    vocab = -(-shape.vocab_size // config.mesh.tensor)
    return 3 * 4 * min(config.logits_chunk_tokens, tokens) * vocab


def experts_bytes(shape: DecoderConfig, config: LearnerConfig) -> int:
    """Of a mixture: a hidden state on its way to each of a token's experts, one on its way back, and the gradients of
    both. The devices of an `expert` group gather their tokens."""
    tokens = config.expert_chunk_tokens or group_tokens(config)
    pairs = min(tokens, group_tokens(config)) * shape.experts_per_token
    return 4 * pairs * shape.hidden_size * BYTES[config.compute_dtype]


def group_tokens(config: LearnerConfig) -> int:
    """Tokens of a microbatch that an `expert` group of devices holds."""
    return config.mesh.expert * config.rows_per_microbatch * config.row_tokens // token_shards(config.mesh)
