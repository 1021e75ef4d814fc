"""RunConfig: everything a run is made from. YAML holds the differences from these defaults, the CLI overrides."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

from pydantic import Field, model_validator

from jaxagent.config.gpus import GpuConfig
from jaxagent.config.learner import LearnerConfig
from jaxagent.config.model import ModelConfig
from jaxagent.config.stages import Stage
from rollout.config import DialogueConfig, EngineConfig, RolloutConfig, StoreConfig
from sandbox.config import CompileConfig, Config, JudgeConfig, SandboxConfig


class TaskConfig(Config):
    """Which problems are trained and evaluated on."""

    train: str
    """A file, a folder, a parquet in the Ops-6K schema, or generated tasks: `synthetic:train` for a CPU,
    `synthetic_cuda:train` for a GPU, with `:SEED` behind it for another set. Several are joined by ` + `."""
    heldout: str
    skill: str = "cpp"
    limit: int | None = Field(default=None, gt=0)
    """Use only the first so many tasks of each, for trying things out."""


class BudgetConfig(Config):
    """What sampling for `jaxagent evaluate` may take. Used up, it starts no more samples and reports what there is.

    The same command with a larger budget goes on from there. Prompts count in every turn, as servers bill them.
    """

    max_tokens: int | None = Field(default=None, gt=0)
    """Of prompts and replies together, over all samples of the evaluation."""
    max_seconds: float | None = Field(default=None, gt=0)
    """Wall time of one start of the command, from the first sample on."""
    max_cost: float | None = Field(default=None, gt=0)
    """In the currency of the prices, which it needs."""
    price_per_million_prompt_tokens: float | None = Field(default=None, ge=0)
    price_per_million_completion_tokens: float | None = Field(default=None, ge=0)

    @model_validator(mode="after")
    def _check(self) -> BudgetConfig:
        prices = (self.price_per_million_prompt_tokens, self.price_per_million_completion_tokens)
        if (None in prices and any(price is not None for price in prices)) or (self.max_cost and None in prices):
            raise ValueError(
                "price_per_million_prompt_tokens and price_per_million_completion_tokens: set both (0 is allowed); a "
                "cost, and a max_cost, need them"
            )
        return self


class EvaluationConfig(Config):
    """Held-out evaluation before, between and after the stages."""

    after: list[str] = []
    """Stages after which held-out tasks are evaluated; the final stage always is."""
    samples_per_task: int = Field(default=4, gt=0)
    dialogue: DialogueConfig = DialogueConfig()
    budget: BudgetConfig = BudgetConfig()


class CheckpointConfig(Config):
    every_updates: int = Field(default=4, gt=0)
    """PPO updates between checkpoints; the end of every stage has one in any case."""
    every_log_updates: int = Field(default=200, gt=0)
    """The same for stages that train on the log, whose updates are short."""
    keep_last: int = Field(default=2, gt=0)


class TrackingConfig(Config):
    """Experiment trackers; metrics.jsonl and TensorBoard are written in any case. They need the extra `tracking`."""

    wandb: bool = False
    """Weights & Biases, with key and mode from its own environment variables."""
    mlflow: bool = False
    mlflow_uri: str | None = None
    """Of the tracking server. None: MLFLOW_TRACKING_URI, else a file in the run's folder."""
    project: str = "jaxagent"
    """W&B's project, MLflow's experiment."""


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
    gpus: GpuConfig = GpuConfig()
    rollout: RolloutConfig = RolloutConfig()
    sandbox: SandboxConfig = SandboxConfig()
    compile: CompileConfig = CompileConfig()
    judge: JudgeConfig = JudgeConfig()
    store: StoreConfig = StoreConfig()
    evaluation: EvaluationConfig = EvaluationConfig()
    checkpoint: CheckpointConfig = CheckpointConfig()
    tracking: TrackingConfig = TrackingConfig()
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
        if 0 < self.gpus.engine < 1 and self.engine.kv_cache_gib is None:
            raise ValueError(
                f"engine.kv_cache_gib: missing, and gpus.engine={self.gpus.engine:g} lets others use the engine's GPU. "
                f"vLLM can only measure what is left for the cache on a GPU of its own; give the size in GiB"
            )
        return self
