"""RunConfig: everything a run is made from. YAML holds the differences from these defaults, the CLI overrides."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

from pydantic import Field, model_validator

from rollout.config import DialogueConfig, EngineConfig, RolloutConfig, StoreConfig
from sandbox.config import CompileConfig, Config, JudgeConfig, SandboxConfig


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

    Rows are shared out over data, fsdp and expert; fsdp splits parameters as well, expert those of experts.
    """

    data: int = Field(default=1, gt=0)
    fsdp: int = Field(default=1, gt=0)
    tensor: int = Field(default=1, gt=0)
    expert: int = Field(default=1, gt=0)
    context: int = Field(default=1, gt=0)


class OptimizerConfig(Config):
    """AdamW. The paper states the two learning rates; the rest is [silent]."""

    learning_rate: float = Field(gt=0)
    warmup_updates: int = Field(default=0, ge=0)
    """Steps over which the learning rate rises linearly from 0."""
    decay_updates: int = Field(default=0, ge=0)
    """Steps over which it falls linearly to a tenth, where it stays; 0 keeps it constant."""
    b1: float = Field(default=0.9, ge=0, lt=1)
    b2: float = Field(default=0.95, ge=0, lt=1)
    eps: float = Field(default=1e-8, gt=0)
    """Adam's. Far above the gradients' root mean square, a step follows the gradient itself, not its signs."""
    weight_decay: float = Field(default=0.0, ge=0)
    max_grad_norm: float = Field(default=1.0, gt=0)


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
    """Log-probs, entropy and values are computed over this many positions at a time."""
    remat: bool = True
    num_learners: int = Field(default=1, gt=0)
    """LearnerActors, one a host; together they form one mesh."""
    max_nonfinite_steps: int = Field(default=3, gt=0)


class StageBase(Config):
    """What every stage has."""

    name: str = Field(pattern=r"^[a-z0-9_]+$")


class SampleStage(StageBase):
    """Fill the log with trajectories of a fixed policy; nothing is trained."""

    kind: Literal["sample"] = "sample"
    policy: Literal["actor", "expert"] = "actor"
    trajectories: int = Field(gt=0)
    dialogue: DialogueConfig = DialogueConfig()


class LessonStage(StageBase):
    """Pre-training for a decoder that starts from random weights: generated pairs of task and right answer, seen once.

    Text alone; nothing in it is executed, timed or rewarded. A pretrained model needs none.
    """

    kind: Literal["lessons"] = "lessons"
    lessons: int = Field(gt=0)
    epochs: int = Field(default=1, gt=0)
    trajectories_per_update: int = Field(default=8, gt=0)
    optimizer: OptimizerConfig


class FineTuneStage(StageBase):
    """Supervised training of the actor on logged trajectories: stage 0 (keep: all) and RFT (keep: good)."""

    kind: Literal["finetune"] = "finetune"
    data: list[str]
    """Names of earlier stages whose trajectories are read."""
    keep: Literal["all", "good"] = "good"
    """good: reward > 0, no redundant loop, no malformed tool call (paper, stage 3a)."""
    epochs: int = Field(default=1, gt=0)
    trajectories_per_update: int = Field(default=16, gt=0)
    lessons: int = Field(default=0, ge=0)
    """Fresh lessons mixed in, whole dialogues, so that a small decoder does not unlearn all but `data`."""
    optimizer: OptimizerConfig


class ValuePretrainStage(StageBase):
    """Value pre-training of the critic on logged trajectories (paper, stage 3b)."""

    kind: Literal["value_pretrain"] = "value_pretrain"
    data: list[str]
    epochs: int = Field(default=2, gt=0)
    trajectories_per_update: int = Field(default=16, gt=0)
    reward: Literal["paper", "raw_speedup"] = "paper"
    """The same as in the PPO stage that the critic is for; so is reward_from."""
    reward_from: Literal["final", "best"] = "final"
    optimizer: OptimizerConfig


class PPOStage(StageBase):
    """PPO on live rollouts: stage 1 (single_turn) and stage 4 (agentic)."""

    kind: Literal["ppo"] = "ppo"
    updates: int = Field(gt=0)
    trajectories_per_update: int = Field(gt=0)
    """Global batch (paper: 1,024)."""
    dialogue: DialogueConfig = DialogueConfig()
    reward: Literal["paper", "raw_speedup"] = "paper"
    """paper: Eq. 1. raw_speedup: compile_ms / candidate_ms if correct, else -1 (ablation)."""
    reward_from: Literal["final", "best"] = "final"
    actor_optimizer: OptimizerConfig = OptimizerConfig(learning_rate=3e-6)
    critic_optimizer: OptimizerConfig = OptimizerConfig(learning_rate=6e-6)


AnyStage = SampleStage | LessonStage | FineTuneStage | ValuePretrainStage | PPOStage
Stage = Annotated[AnyStage, Field(discriminator="kind")]


class TaskConfig(Config):
    """Which problems are trained and evaluated on."""

    train: str
    """A file, a folder, a parquet in the Ops-6K schema, or `synthetic:SEED` for the demo's generated tasks."""
    heldout: str
    skill: str = "cpp"
    limit: int | None = Field(default=None, gt=0)
    """Use only the first so many tasks of each, for trying things out."""


class EvaluationConfig(Config):
    """Held-out evaluation before, between and after the stages."""

    after: list[str] = []
    """Stages after which held-out tasks are evaluated; the final stage always is."""
    samples_per_task: int = Field(default=4, gt=0)
    dialogue: DialogueConfig = DialogueConfig()


class CheckpointConfig(Config):
    every_updates: int = Field(default=4, gt=0)
    """PPO updates between checkpoints; the end of every stage has one in any case."""
    every_log_updates: int = Field(default=200, gt=0)
    """The same for stages that train on the log, whose updates are short."""
    keep_last: int = Field(default=2, gt=0)


class StartFromConfig(Config):
    """Begin where a stage of another run ended: its weights, its log and its evaluations up to there."""

    run: Path
    """Folder of that run; its stages up to `after` have to be those of this config."""
    after: str


class RunConfig(Config):
    """One run: the whole schedule from tasks to evaluation."""

    name: str = Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]*$")
    seed: int = Field(default=0, ge=0)
    runs_dir: Path = Path("runs")
    """The run folder is runs_dir/name; never inside what a Ray job uploads."""
    tasks: TaskConfig
    model: ModelConfig
    critic: Literal["actor_copy"] = "actor_copy"
    """The critic's own backbone starts as a copy of the actor's, its value head at zero."""
    stages: list[Stage] = Field(min_length=1)
    learner: LearnerConfig = LearnerConfig()
    engine: EngineConfig = EngineConfig()
    rollout: RolloutConfig = RolloutConfig()
    sandbox: SandboxConfig = SandboxConfig()
    compile: CompileConfig = CompileConfig()
    judge: JudgeConfig = JudgeConfig()
    store: StoreConfig = StoreConfig()
    evaluation: EvaluationConfig = EvaluationConfig()
    checkpoint: CheckpointConfig = CheckpointConfig()
    start_from: StartFromConfig | None = None

    @model_validator(mode="after")
    def _check(self) -> RunConfig:
        seen: list[str] = []
        for stage in self.stages:
            if stage.name in seen:
                raise ValueError(f"stages: the name {stage.name!r} stands twice; every stage needs its own")
            for source in getattr(stage, "data", []):
                if source not in seen:
                    raise ValueError(f"stages.{stage.name}.data: {source!r} is no earlier stage; earlier ones: {seen}")
            seen.append(stage.name)
        named = [("evaluation.after", name) for name in self.evaluation.after]
        named += [("start_from.after", self.start_from.after)] if self.start_from else []
        for key, name in named:
            if name not in seen:
                raise ValueError(f"{key}: {name!r} is no stage; stages: {seen}")
        return self
