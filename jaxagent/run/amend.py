"""What a resumed run may change in its config, and how the change is recorded in its folder."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from fnmatch import fnmatchcase
from typing import Any

from jaxagent.config.changes import config_changes
from jaxagent.config.load import ConfigError, dump_config, override
from jaxagent.config.run import RunConfig
from jaxagent.files.write import write_atomically
from jaxagent.run.folder import RunFolder, open_run
from jaxagent.run.metrics_log import read_metrics

CHANGEABLE = (
    "stages.*.optimizer.*",
    "stages.*.actor_optimizer.*",
    "stages.*.critic_optimizer.*",
    "learner.mesh.*",
    "learner.rows_per_microbatch",
    "learner.logits_chunk_tokens",
    "learner.remat",
    "learner.expert_chunk_tokens",
    "learner.max_nonfinite_steps",
    *(f"learner.ppo.{key}" for key in ("clip_low", "clip_high", "entropy_coef", "importance_cap", "value_clip")),
    *(f"engine.{key}" for key in ("num_engines", "max_model_len", "max_num_seqs", "execution", "kv_cache_gib")),
    *(f"engine.{key}" for key in ("gpu_memory_utilization", "cpu_threads", "weight_transfer", "*_timeout_s")),
    *("engine.probe_tokens", "engine.probe_gap", "gpus.*"),
    *(f"rollout.{key}" for key in ("num_actors", "trajectories_per_actor", "max_retries", "max_drops_in_a_row")),
    "rollout.silence_s",
    *("sandbox.warm_containers", "judge.max_retries"),
    *(f"compile.{key}" for key in ("cache_dir", "cache_max_mb", "num_workers")),
    *("store.*", "checkpoint.*", "tracking.*", "evaluation.after"),
)
"""Read anew by whoever uses them, and nothing in the log or a checkpoint depends on their value."""

REASONS = (
    ("stages.*", "what a stage is made of, its data, length, dialogue and reward, is fixed once its run has begun"),
    ("stages", "checkpoints count the stages"),
    ("name", "it names the folder of the run"),
    ("runs_dir", "it names the folder of the run"),
    ("seed", "tickets, epochs and the tokenizer of the run were drawn from it"),
    ("tasks.*", "the tickets in the log number these tasks"),
    ("model.*", "the checkpoints hold weights of this model"),
    ("critic", "the checkpoints hold weights of this critic"),
    ("start_from*", "the run has started already"),
    ("learner.param_dtype", "the checkpoints hold parameters of this type"),
    ("learner.row_tokens", "the tokenizer and the rows of a stage under way were made for it"),
    ("learner.num_learners", "the checkpoints were written by that many"),
    ("learner.ppo.kl_coef", "the reference of its KL term is kept when a stage begins"),
    ("rollout.max_staleness", "trajectories that wait in the log were let in under it"),
    ("judge.*", "rewards before and after the change could not be compared"),
    ("compile.*", "rewards before and after the change could not be compared"),
    ("sandbox.*", "rewards before and after the change could not be compared"),
    ("evaluation*", "the figures before and after training could not be compared"),
    ("*", "what was learned so far was learned under it"),
)
"""The first pattern that fits says why a key that is not CHANGEABLE cannot be changed."""


def amended(folder: RunFolder, stored: RunConfig, overrides: Sequence[str]) -> RunConfig:
    """The stored config with overrides as of `load_config`. Nothing is written: see record_change.

    Raises ConfigError for a key that a resumed run cannot change, with the reason.
    """
    config = override(stored, overrides, where=f"--resume {folder.root}")
    over = stages_over(folder, stored)
    for key, (old, new) in config_changes(stored, config).items():
        reason = _refusal(key, over)
        if reason is not None:
            raise ConfigError(
                f"{key}={new}: this run has {old}, and a resumed run cannot change it: {reason}. Leave it out, or "
                "start a new run with it (start_from takes over the stages that are finished)"
            )
    return config


def stages_over(folder: RunFolder, config: RunConfig) -> list[str]:
    """Stages that no update will be made in any more, going by what has been logged of later ones."""
    names = [stage.name for stage in config.stages]
    if folder.summary.exists():
        return names
    begun = {record["stage"] for record in read_metrics(folder.metrics)}
    first = names.index(config.start_from.after) + 1 if config.start_from else 0
    return names[: max((index for index, name in enumerate(names) if name in begun), default=first)]


def record_change(folder: RunFolder, config: RunConfig) -> dict[str, tuple[Any, Any]]:
    """Makes `config` the run's, and keeps the one before as config.N.yaml with what changed, and when, at its head.

    Returns the changes by key. The caller is the one writer of the run.
    """
    stored = open_run(folder.root)[1]
    changes = config_changes(stored, config)
    if not changes:
        return {}
    updates = sum(1 for _ in read_metrics(folder.metrics))
    head = [f"# The config of this run until a resume after {updates} logged updates changed:"]
    head += [f"#   {key}: {old} -> {new}" for key, (old, new) in changes.items()]
    number = 1 + max((_number(path.name) for path in folder.root.glob("config.*.yaml")), default=0)
    write_atomically(folder.root / f"config.{number}.yaml", "\n".join([*head, dump_config(stored)]))
    write_atomically(folder.config, dump_config(config))
    return changes


def _refusal(key: str, over: Collection[str]) -> str | None:
    section, _, rest = key.partition(".")
    if section == "stages" and rest.partition(".")[0] in over:
        return "that stage is over, and its settings say what was done"
    if any(fnmatchcase(key, pattern) for pattern in CHANGEABLE):
        return None
    return next(reason for pattern, reason in REASONS if fnmatchcase(key, pattern))


def _number(name: str) -> int:
    middle = name.split(".")[1]
    return int(middle) if middle.isdigit() else 0
