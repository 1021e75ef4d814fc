"""`jaxagent synthesize`: candidates are composed and filtered, block by block, until enough are kept.

Candidate k of a seed is always the same, blocks are judged in order, and the first `num_tasks` that are kept are the
set. So it depends on the seed alone, but for tasks whose time lies close to a limit; those are listed.
"""

from __future__ import annotations

import contextlib
import json
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from rich.console import Console

from jaxagent.synthesis.catalogue.mine import mine
from jaxagent.synthesis.checker import CheckedTask, Prober, TaskChecker, evidence_row
from jaxagent.synthesis.compose import Composed, Composer
from jaxagent.synthesis.config import SynthesisConfig, SynthesisError
from jaxagent.synthesis.evidence_log import EvidenceLog
from jaxagent.synthesis.funnel import funnel_json, print_funnel
from jaxagent.synthesis.llm_compose import LLMComposer, Usage
from jaxagent.synthesis.ops6k import OpsRow, export_ops6k, split_by_family
from jaxagent.synthesis.progress import phase_bars
from jaxagent.synthesis.run_rules import median_ms

_BORDERLINE = 2.0
"""Times within this ratio of a limit may fall on its other side on another day."""


@dataclass(slots=True)
class Synthesis:
    """Everything that was tried, in order."""

    composed: dict[str, Composed] = field(default_factory=dict)
    checked: list[CheckedTask] = field(default_factory=list)
    contract_broken: int = 0
    """Candidates for which a language model gave no usable reply."""
    usage: Usage | None = None

    def kept(self, count: int) -> list[CheckedTask]:
        return [task for task in self.checked if task.kept][:count]


def synthesize(config: SynthesisConfig, out: Path, *, resume: bool, console: Console) -> dict[str, Any]:
    """Writes `out` (Ops-6K schema and metadata), and beside it .report.json, .dropped.jsonl and .catalogue.json.

    The report, as it is stored. Raises SynthesisError, StoreError, LLMError, DeviceError; `resume` goes on afterwards.
    """
    if out.suffix != ".parquet":
        raise SynthesisError(f"--out {out}: the tasks are written as a parquet; let the name end in .parquet")
    out.parent.mkdir(parents=True, exist_ok=True)
    began = time.monotonic()
    log = EvidenceLog(out.with_suffix(".log"), config, resume=resume)
    try:
        if log.num_resumed:
            console.print(f"{log.num_resumed} results are kept from before")
        catalogue = mine()
        result = Synthesis()
        with phase_bars(console) as report, contextlib.ExitStack() as stack:
            probers = _probers(config)
            checker = stack.enter_context(
                TaskChecker(config.filters, config.probe, store=log, probers=probers, report=report)
            )
            for _ in _blocks(config, checker, log, result):
                console.print(f"{len(result.checked)} candidates, {sum(task.kept for task in result.checked)} kept")
    finally:
        log.close()
    summary = _summary(config, result, time.monotonic() - began, log.num_resumed)
    _write(config, result, out, summary, catalogue.to_json())
    print_funnel(result.checked, console)
    return summary


def _probers(config: SynthesisConfig) -> list[Prober] | None:
    if config.executor == "local":
        return None
    from jaxagent.synthesis.actors import ray_probers

    return list(ray_probers(config.probe))


def _blocks(config: SynthesisConfig, checker: TaskChecker, log: EvidenceLog, result: Synthesis) -> Iterator[None]:
    """Fills `result`, a block at a time."""
    draw = _source(config, log, result)
    for start in range(0, config.max_candidates, config.block):
        indices = range(start, min(start + config.block, config.max_candidates))
        candidates: list[tuple[str, str]] = []
        for index, composed in zip(indices, draw(indices), strict=True):
            if composed is None:
                result.contract_broken += 1
                continue
            name = f"synth_{config.seed}_{index:06d}"
            result.composed[name] = composed
            candidates.append((name, composed.code))
        result.checked += checker.check(candidates)
        yield
        if sum(task.kept for task in result.checked) >= config.num_tasks:
            return


def _source(config: SynthesisConfig, log: EvidenceLog, result: Synthesis) -> Any:
    """indices -> candidates."""
    if config.source == "llm" and config.llm is not None:
        llm = LLMComposer(
            config.llm,
            config.seed,
            max_operators=config.filters.max_operators,
            device=config.probe.device,
            store=log,
        )
        result.usage = llm.usage
        return llm.candidates
    composer = Composer(config.compose, config.seed)
    return lambda indices: [composer.candidate(index) for index in indices]


def _summary(config: SynthesisConfig, result: Synthesis, seconds: float, num_resumed: int) -> dict[str, Any]:
    kept = result.kept(config.num_tasks)
    operators = Counter(op for task in kept for op in result.composed[task.name].ops)
    families = Counter(family for task in kept for family in result.composed[task.name].families)
    summary: dict[str, Any] = {
        "seconds": round(seconds, 1),
        "results_kept_from_before": num_resumed,
        "tasks": len(kept),
        "operators": len(operators),
        "funnel": funnel_json(result.checked),
        "by_length": dict(sorted(Counter(result.composed[task.name].data_source for task in kept).items())),
        "by_family": dict(families.most_common()),
        "operator_counts": dict(operators.most_common()),
        "timing_borderline": [task.name for task in result.checked if _is_borderline(task, config)],
    }
    if result.usage is not None and config.llm is not None:
        summary["llm"] = asdict(result.usage) | {
            "without_usable_reply": result.contract_broken,
            "dollars": result.usage.dollars(config.llm),
        }
    return summary


def _is_borderline(task: CheckedTask, config: SynthesisConfig) -> bool:
    """Kept or dropped by a time that might come out otherwise."""
    reason = None if task.finding is None else str(task.finding.reason)
    if median_ms(task.evidence) is None or reason not in (None, "too_fast", "too_slow"):
        return False
    low, high = task.evidence["time"]["p25_ms"] / _BORDERLINE, task.evidence["time"]["p75_ms"] * _BORDERLINE
    return any(low < limit < high for limit in (config.filters.min_ms, config.filters.max_ms))


def _write(
    config: SynthesisConfig, result: Synthesis, out: Path, summary: dict[str, Any], catalogue: dict[str, Any]
) -> None:
    kept = result.kept(config.num_tasks)
    rows = []
    for task in kept:
        composed = result.composed[task.name]
        metadata = {"task_id": task.name, "families": composed.families, "seed": config.seed}
        rows.append(OpsRow(composed.ops, composed.data_source, task.code, metadata | evidence_row(task)))
    splits = split_by_family(rows, validation=config.validation, seed=config.seed)
    for row, split in zip(rows, splits, strict=True):
        row.metadata["split"] = split
    export_ops6k(rows, out)
    _write_text(out.with_suffix(".report.json"), json.dumps(summary, indent=1))
    _write_text(out.with_suffix(".catalogue.json"), json.dumps(catalogue, indent=1))
    dropped = [{"name": task.name, "code": task.code} | evidence_row(task) for task in result.checked if not task.kept]
    _write_text(out.with_suffix(".dropped.jsonl"), "".join(json.dumps(row) + "\n" for row in dropped))


def _write_text(path: Path, text: str) -> None:
    partial = path.with_name(path.name + ".partial")
    partial.write_text(text, encoding="utf-8")
    partial.replace(path)
