"""How actor and critic are trained: their mesh, adapters, PPO, and the shape of what is computed at once."""

from __future__ import annotations

from typing import Literal

from pydantic import Field, model_validator

from sandbox.config import Config

Remat = bool | Literal["keep_attention", "keep_products"]


class LoraConfig(Config):
    """Low-rank adapters on actor and critic; the base stays as it was loaded."""

    rank: int = Field(default=16, gt=0)
    alpha: float = Field(default=32.0, gt=0)
    """The adapter's term is multiplied by alpha / rank."""
    targets: list[Literal["q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"]] = Field(
        default=["q_proj", "k_proj", "v_proj", "o_proj"], min_length=1
    )
    """Matrices with an adapter, in every layer; those of experts have none."""

    @model_validator(mode="after")
    def _check(self) -> LoraConfig:
        if len(set(self.targets)) != len(self.targets):
            raise ValueError(f"targets={self.targets} names a matrix twice; name each once")
        return self


class MeshConfig(Config):
    """Devices along each axis; the product is the number of devices of the learner.

    Rows are shared out over data, fsdp and expert, and their tokens over context; fsdp splits parameters as well,
    expert those of experts.
    """

    data: int = Field(default=1, gt=0)
    fsdp: int = Field(default=1, gt=0)
    tensor: int = Field(default=1, gt=0)
    expert: int = Field(default=1, gt=0)
    context: int = Field(default=1, gt=0)


class PPOConfig(Config):
    """Proximal policy optimisation; defaults are the paper's where it states them."""

    clip_low: float = Field(default=0.2, gt=0, lt=1)
    """The ratio is clipped below at 1 - clip_low."""
    clip_high: float = Field(default=0.28, gt=0)
    gamma: float = Field(default=1.0, gt=0, le=1)
    gae_lambda: float = Field(default=0.95, ge=0, le=1)
    minibatches: int = Field(default=1, gt=0)
    """Optimizer steps per batch (paper: 1, mini-batch = global batch)."""
    critic_updates: int = Field(default=1, gt=0)
    """Critic steps per actor step."""
    value_clip: float | None = Field(default=None, gt=0)
    entropy_coef: float = Field(default=0.0, ge=0)
    kl_coef: float = Field(default=0.0, ge=0)
    normalize_advantages: bool = False
    importance_cap: float | None = Field(default=2.0, gt=1)
    """Truncated importance sampling between engine and trainer: weight min(exp(old - rollout), cap); None is off."""
    aggregation: Literal["trajectory_mean", "token_mean"] = "trajectory_mean"
    """Paper: token mean per trajectory, then mean over trajectories."""


class LearnerConfig(Config):
    """Actor and critic in JAX."""

    mesh: MeshConfig = MeshConfig()
    param_dtype: Literal["float32", "bfloat16"] = "float32"
    """What the networks compute from and what is published. The optimizer always updates float32: with bfloat16 it
    keeps a float32 master copy beside, so that costs memory (6 bytes a parameter, not 4) and saves gathering them."""
    compute_dtype: Literal["float32", "bfloat16"] = "float32"
    ppo: PPOConfig = PPOConfig()
    lora: LoraConfig | None = None
    """None: all parameters are trained."""
    router_aux_coef: float = Field(default=0.0, ge=0)
    """Weight of the load-balancing loss of a mixture of experts, in all losses of the actor; 0 is off."""
    row_tokens: int = Field(default=2048, gt=0)
    """Length of a packed row; no trajectory may be longer."""
    rows_per_microbatch: int = Field(default=4, gt=0)
    logits_chunk_tokens: int = Field(default=1024, gt=0)
    """Log-probs and entropy are computed over this many positions at a time, on each device that holds tokens. Their
    float32 logits, x 4 bytes x vocabulary, are alive about three times. Where a microbatch has no more positions than
    this, its logits stay for the backward pass and are not computed again."""
    remat: Remat = True
    """Layers are computed again in the backward pass, so that one hidden state a layer is kept. keep_attention: all but
    their attention, whose outputs are kept as well; it is most of the work in long rows. keep_products: all but their
    attention and matrix products; what is left to compute again costs little. false keeps everything."""
    unroll_layers: bool = False
    """Layers are compiled one after the other and not as one loop: what they keep for the backward pass is not copied,
    which makes a step some 9 % faster on an H200, and compiling takes a few times as long."""
    expert_chunk_tokens: int | None = Field(default=None, gt=0)
    """Tokens whose experts a device of a mixture computes at a time; None: all of a microbatch."""
    num_learners: int = Field(default=1, gt=0)
    """LearnerActors, one a host; together they form one mesh."""
    max_nonfinite_steps: int = Field(default=3, gt=0)

    @model_validator(mode="after")
    def _check(self) -> LearnerConfig:
        # Rows of a quarter of row_tokens occur, and each is cut into two chunks a device.
        multiple = 8 * self.mesh.context
        if self.mesh.context > 1 and self.row_tokens % multiple:
            raise ValueError(
                f"row_tokens={self.row_tokens} must be a multiple of 8 x mesh.context = {multiple}, so that rows can "
                f"be split along their length; set it to {-(-self.row_tokens // multiple) * multiple}"
            )
        return self
