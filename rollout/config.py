"""Settings of the rollout flow: dialogue limits, actors, engines, the trajectory store."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from rollout.scripted_load import TurnLoad
from sandbox.config import Config


class DialogueConfig(Config):
    """How one trajectory is conducted and where it must end."""

    kind: Literal["single_turn", "agentic"] = "agentic"
    """single_turn: one answer, no execution feedback. agentic: the tool loop."""
    max_turns: int = Field(default=20, gt=0)
    """Paper: 150 in training, 200 in evaluation; a single-turn dialogue has one."""
    max_context_tokens: int = Field(default=2048, gt=0)
    max_reply_tokens: int = Field(default=512, gt=0)
    max_seconds: float = Field(default=600.0, gt=0)
    """Wall time; it stands still while the judge makes the dialogue wait."""
    max_sandbox_seconds: float = Field(default=3600.0, gt=0)
    """Of all commands in the sandbox together; one command has sandbox.command_timeout_s."""
    temperature: float = Field(default=1.0, ge=0)
    prompt: str = "compact"
    """`compact`: a few lines, for models trained on the tasks. `cuda_brief`: what has to be known of the skill cuda, in
    300 tokens. `full`: the skill's SKILL.md. Or a path to a jinja2 template."""
    parser: Literal["qwen3_coder", "hermes", "llama", "react"] = "qwen3_coder"
    """How tool calls are written in the policy's text."""
    max_observation_chars: int | None = Field(default=None, gt=0)
    """One tool result is cut in its middle to this length. None: max_context_tokens / 4, at most 30,000."""

    @property
    def has_all_tools(self) -> bool:
        """Whether an agent gets every tool; with a short prompt it gets bash, read, write and edit."""
        return self.prompt not in ("compact", "cuda_brief")

    @property
    def observation_chars(self) -> int:
        return self.max_observation_chars or min(30_000, max(self.max_context_tokens // 4, 100))


class RolloutConfig(Config):
    """Asynchronous rollouts."""

    num_actors: int = Field(default=2, gt=0)
    trajectories_per_actor: int = Field(default=8, gt=0)
    """Concurrent loops in one actor."""
    max_staleness: int = Field(default=1, ge=0)
    """Largest allowed difference between the learner's version and the oldest version that sampled a token of a
    trajectory. 0 is synchronous training."""
    max_retries: int = Field(default=3, ge=0)
    """Repeats of one (task, sample) after trouble of ours before the run stops with an error."""
    silence_s: float = Field(default=180.0, gt=0)
    """A rollout actor or engine that gives no sign of life for so long is ended and started again. In a timed section
    it stands still, so this has to be longer."""
    max_drops_in_a_row: int = Field(default=64, gt=0)
    """Trajectories that cannot be trained on, none of them fit in between, before the run stops with an error."""


class EngineConfig(Config):
    """vLLM, as served to the rollout actors."""

    num_engines: int = Field(default=1, gt=0)
    max_model_len: int = Field(default=2048, gt=0)
    max_num_seqs: int = Field(default=32, gt=0)
    dtype: Literal["auto", "bfloat16", "float32", "float16"] = "float32"
    execution: Literal["eager", "graphs", "compiled"] = "eager"
    """How a step of the model runs. On a GPU `graphs` replays CUDA graphs of decoding steps and compiles
    nothing, so the engine is ready sooner; `compiled` has vLLM compile the model too, for engines that stay up."""
    kv_cache_gib: float | None = Field(default=None, gt=0)
    """Size of the KV cache. Without it: 1 on a CPU, and on a GPU what gpu_memory_utilization leaves. vLLM measures
    that, and memory that others free meanwhile ends it: a GPU that learner or profiler share needs the number."""
    gpu_memory_utilization: float = Field(default=0.4, gt=0, le=1)
    """Share of a GPU's memory that has to be free for the engine at its start."""
    cpu_threads: int = Field(default=2, gt=0)
    weight_transfer: Literal["shared_memory", "ipc", "nccl"] = "shared_memory"
    """How weights come from the learner. shared_memory: files, on one host. ipc: the learner's own GPU memory, where
    both share a GPU. nccl: a broadcast between devices, also of other hosts (gloo between CPUs)."""
    publish_timeout_s: float = Field(default=60.0, gt=0)
    probe_tokens: int = Field(default=24, ge=0)
    """After each publish the engine's logprobs of so many fixed tokens are compared with the learner's; 0: not done."""
    probe_gap: float = Field(default=0.2, gt=0)
    """Largest mean distance of those logprobs; beyond it the engine is ended and started again."""
    start_timeout_s: float = Field(default=600.0, gt=0)
    request_timeout_s: float = Field(default=1800.0, gt=0)
    """Wall time of one generate call, waiting and pauses included; only a hung engine should reach it."""
    seed: int = 0
    scripted: TurnLoad | None = None
    """Instead of vLLM an engine that plays replies with such times: for measuring the flow, and for breaking it. What
    is learned from them means nothing."""


class StoreConfig(Config):
    """The trajectory log."""

    fsync: bool = True
    segment_mb: int = Field(default=64, gt=0)


class EndpointConfig(Config):
    """An OpenAI-compatible server that answers instead of our own engine."""

    base_url: str
    model: str
    api_key_env: str = "OPENAI_API_KEY"
    timeout_s: float = Field(default=300.0, gt=0)
    max_retries: int = Field(default=5, ge=0)
