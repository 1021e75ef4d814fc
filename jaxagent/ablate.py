"""`jaxagent ablate`: runs that start where another run's stage ended, one after the other, and one table of all."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

from jaxagent.load_config import load_config
from jaxagent.progress import RunProgress
from jaxagent.results import EvaluationResult, gain, show, table_rows
from jaxagent.run_folder import RunFolder, open_run
from jaxagent.train import resume, train


async def ablate(base: Path, configs: Sequence[Path], *, after: str, overrides: Sequence[str]) -> None:
    """Runs each config from the end of stage `after` of the run in `base`; finished ones are read, not repeated."""
    base_folder, base_config = open_run(base)
    results = [_final(base_folder, "full")]
    for path in configs:
        config = load_config(
            path,
            [
                *("--name", f"{path.stem}_seed{base_config.seed}"),
                *("--seed", str(base_config.seed), "--runs_dir", str(base_folder.root.parent)),
                *("--start_from", json.dumps({"run": str(base_folder.root), "after": after})),
                *overrides,
            ],
        )
        folder = RunFolder((config.runs_dir / config.name).expanduser().resolve())
        if not folder.summary.exists():
            await (resume(folder.root) if folder.config.exists() else train(config))
        results.append(_final(folder, path.stem))
    progress = RunProgress()
    progress.table(f"ablations of {base_config.name}, held-out tasks, 95 % bootstrap intervals", *table_rows(results))
    for result in results[1:]:
        difference = show(gain(results[0], result, seed=base_config.seed))
        progress.say(f"held-out mean reward, {result.label} over full: {difference} (paired bootstrap over tasks)")


def _final(folder: RunFolder, label: str) -> EvaluationResult:
    summary = json.loads(folder.summary.read_text())
    return EvaluationResult.from_json(summary["heldout"]["after"] | {"label": label})
