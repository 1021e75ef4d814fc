"""What a report shows of one evaluation (`jaxagent evaluate --out DIR`), read from its folder."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import yaml

from jaxagent.config.load import ConfigError, validate
from jaxagent.config.run import RunConfig
from jaxagent.evaluation.results import EvaluationResult
from jaxagent.evaluation.scorecard import OVERALL
from jaxagent.report.data import RunData
from jaxagent.report.heldout import HeldoutSamples
from jaxagent.report.shared_texts import SharedTexts
from jaxagent.report.trajectories import pack_trajectories
from jaxagent.run.folder import RunFolder
from rollout.store import TrajectoryStore


def is_evaluation(root: Path) -> bool:
    return (root / "evaluation.json").is_file()


def load_evaluation(root: Path) -> RunData:
    """Raises ConfigError where it was made by a version that kept no config, StoreError where its log can't be read."""
    root = root.expanduser().resolve()
    record = json.loads((root / "evaluation.json").read_text())
    if "config" not in record:
        raise ConfigError(f"{root}: this evaluation has no config on record; run its command again to have one")
    config = validate(record["config"], where=str(root / "evaluation.json")).model_copy(update={"name": root.name})
    asked = record["asked"]
    summary = json.loads((root / "summary.json").read_text()) if (root / "summary.json").exists() else {}
    results = [EvaluationResult.from_json(row) for row in summary.get("rows", [])]
    model = root / "model" if (root / "model").is_dir() else _model_folder(asked["policy"])
    texts = SharedTexts(model, [record["tasks_source"]] if record.get("tasks_source") else [])
    with TrajectoryStore(root / "store", config.store, writable=False) as store:
        stages = list(dict.fromkeys(trajectory.stage for trajectory in store.trajectories()))
        pack = pack_trajectories([(store, stage) for stage in stages], texts, {})
        return RunData(
            folder=RunFolder(root),
            config=config,
            config_text=yaml.safe_dump(record["config"], sort_keys=False, width=110),
            is_evaluation=True,
            records=[],
            evaluations=results,
            gains={},
            seconds=None,
            trajectories=pack,
            heldout=_by_row(results, store),
            facts=_facts(asked, config, summary, pack.num_stored),
            families=[EvaluationResult.from_json(row) for row in summary.get("families", [])],
            remarks=_remarks(summary),
        )


def _model_folder(policy: str) -> Path | None:
    kind, _, path = policy.partition(" ")
    return Path(path) if kind == "model" else None


def _by_row(results: list[EvaluationResult], store: TrajectoryStore) -> list[HeldoutSamples]:
    """The samples of every level; of the row over all none, which would draw each twice."""
    levels = [result for result in results if result.label != OVERALL]
    return [
        HeldoutSamples.of(result.label, (t for t in store.trajectories() if t.task_id in result.rewards))
        for result in levels
    ]


def _facts(asked: dict[str, Any], config: RunConfig, summary: dict[str, Any], num_stored: int) -> list[tuple[str, str]]:
    facts = [
        ("policy", asked["policy"]), ("protocol", asked["protocol"]), ("skill", asked["skill"]),
        ("tasks", str(len(asked["tasks"]))), ("samples", f"{num_stored:,}"), ("seed", str(config.seed)),
    ]  # fmt: skip
    if summary.get("weights"):
        facts.append(("weights", summary["weights"]))
    spent = summary.get("spent") or {}
    if spent.get("completion_tokens"):
        facts.append(("tokens", f"{spent['prompt_tokens']:,} prompt, {spent['completion_tokens']:,} reply"))
    if spent.get("cost") is not None:
        facts.append(("cost", f"{spent['cost']:,.2f}"))
    return facts


def _remarks(summary: dict[str, Any]) -> list[str]:
    if not summary:
        return ["This evaluation has not come to its end: there are samples, and no results yet."]
    found = summary.get("contamination") or {}
    remarks = [f"Can be passed without the work: {task} ({why})" for task, why in summary.get("degenerate", {}).items()]
    remarks += [f"Not evaluated: {task}: {why.splitlines()[0]}" for task, why in summary.get("unusable", {}).items()]
    if found.get("train_tasks") is None:
        return [f"Contamination is not known: {found.get('train_source', 'nothing on record')}", *remarks]
    same, similar = len(found["same"]), len(found["same_structure"])
    text = (
        f"{same} evaluated tasks are among the {found['train_tasks']} training tasks, {similar} more in all but numbers"
    )
    return [f"Contamination: {text}", *remarks]
