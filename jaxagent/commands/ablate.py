"""`jaxagent ablate`: runs that start where another run's stage ended, one after the other, and one table of all."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

from jaxagent.commands.train import resume, train
from jaxagent.config.changes import config_changes
from jaxagent.config.load import ConfigError, load_config
from jaxagent.config.run import RunConfig
from jaxagent.evaluation.results import EvaluationResult, gain, show, table_rows
from jaxagent.run.folder import RunFolder, open_run, read_origin
from jaxagent.run.progress import RunProgress


async def ablate(base: Path, configs: Sequence[Path], *, after: str, overrides: Sequence[str]) -> None:
    """Runs each config from the end of stage `after` of the run in `base`; finished ones are read, not repeated.

    Raises ConfigError where a folder holds an ablation of another base run, or one with other settings.
    """
    base_folder, base_config = open_run(base)
    results = [_final(base_folder, "full")]
    for path in configs:
        config = ablation_config(path, base_folder, base_config, after=after, overrides=overrides)
        folder = RunFolder((config.runs_dir / config.name).expanduser().resolve())
        started = folder.config.exists()
        if started:
            check_same_ablation(folder, config, base_folder)
        if not folder.summary.exists():
            await (resume(folder.root) if started else train(config))
        results.append(_final(folder, path.stem))
    progress = RunProgress()
    progress.table(f"ablations of {base_config.name}, held-out tasks, 95 % bootstrap intervals", *table_rows(results))
    for result in results[1:]:
        difference = show(gain(results[0], result, seed=base_config.seed))
        progress.say(f"held-out mean reward, {result.label} over full: {difference} (paired bootstrap over tasks)")


def ablation_config(
    path: Path, base_folder: RunFolder, base_config: RunConfig, *, after: str, overrides: Sequence[str]
) -> RunConfig:
    """The config in `path` as an ablation of that base run, in a folder beside it that has its name."""
    own = [
        *("--name", f"{base_folder.root.name}_{path.stem}"),
        *("--seed", str(base_config.seed), "--runs_dir", str(base_folder.root.parent)),
        *("--start_from", json.dumps({"run": str(base_folder.root), "after": after})),
    ]
    return load_config(path, [*own, *overrides])


def check_same_ablation(folder: RunFolder, config: RunConfig, base_folder: RunFolder) -> None:
    """Raises ConfigError unless `folder` holds a run of `config` that started from the base run as it is now."""
    changes = config_changes(open_run(folder.root)[1], config)
    if changes:
        key, (there, wanted) = next(iter(changes.items()))
        raise ConfigError(
            f"{folder.root} holds a run with other settings: {key} is {there} there and {wanted} here "
            f"({len(changes)} in all); remove that folder, or give this one a name of its own (--name NAME)"
        )
    if read_origin(folder)["started_from"] != read_origin(base_folder)["id"]:
        raise ConfigError(
            f"{folder.root} started from an earlier run that was in {base_folder.root}, not from the one there now; "
            "remove that folder, or give this one a name of its own (--name NAME)"
        )


def _final(folder: RunFolder, label: str) -> EvaluationResult:
    if not folder.summary.exists():
        raise ConfigError(f"{folder.root} is not finished; finish it with `jaxagent train --resume {folder.root}`")
    summary = json.loads(folder.summary.read_text())
    return EvaluationResult.from_json(summary["heldout"]["after"] | {"label": label})
