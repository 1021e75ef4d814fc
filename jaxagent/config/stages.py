"""The stages of a schedule: what each kind of them does, with what data, optimizer and reward."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from rollout.config import DialogueConfig
from sandbox.config import Config


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
