"""One trajectory as JSON for the viewer: turns with calls and observations, versions of files, tokens with numbers."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence
from typing import Any

from jaxagent.report.shared_texts import SharedTexts
from jaxagent.run.token_records import TokenRecord
from rollout.file_history import FileHistory
from rollout.types import Trajectory, Turn

MAX_SHADED_TOKENS = 4096
"""Of one trajectory: beyond them the viewer has the text without its tokens."""


def encode_trajectory(trajectory: Trajectory, texts: SharedTexts, records: TokenRecord | None = None) -> dict[str, Any]:
    """Everything a viewer shows of a trajectory, as JSON; `records`: ratios and advantages of its tokens."""
    history, versions = FileHistory(), []
    tokens = _TokenColumns(texts, records)
    return _json_safe({
        "id": trajectory.trajectory_id,
        "task": trajectory.task_id,
        "stage": trajectory.stage,
        "sample": trajectory.sample_index,
        "seed": trajectory.seed,
        "stop": str(trajectory.stop_reason),
        "seconds": round(trajectory.seconds, 2),
        "judgement": trajectory.judgement.to_json(),
        "prompt": texts.add(trajectory),
        "turns": [_encode_turn(turn, history, versions) | tokens.of(turn) for turn in trajectory.turns],
        "files": versions,
    })  # fmt: skip


def _encode_turn(turn: Turn, history: FileHistory, versions: list[dict[str, Any]]) -> dict[str, Any]:
    calls = []
    for place, call in enumerate(turn.tool_calls):
        observation = turn.observations[place] if place < len(turn.observations) else None
        version = history.follow(call, observation)
        arguments = {k: v for k, v in call.arguments.items() if version is None or k not in ("path", "content")}
        if version is not None:
            versions.append(dataclasses.asdict(version))
        file = None if version is None else len(versions) - 1
        calls.append({"name": call.name, "arguments": arguments, "error": call.error, "file": file})
    return {
        "text": turn.text,
        "calls": calls,
        "observations": turn.observations,
        "judgement": None if turn.judgement is None else turn.judgement.to_json(),
        "truncated": turn.truncated,
        "prompt_tokens": len(turn.prompt_token_ids),
        "tokens": len(turn.token_ids),
        "versions": sorted({int(version) for version in turn.policy_versions}),
        "mean_logprob": round(float(turn.logprobs.mean()), 4) if len(turn.logprobs) else None,
    }


def _json_safe(value: Any) -> Any:
    """JSON has no NaN and no infinity, which errors of wrong results may be: they become words."""
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    if isinstance(value, dict):
        return {key: _json_safe(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_json_safe(item) for item in value]
    return value


class _TokenColumns:
    """Cuts what is known of a trajectory's sampled tokens into its turns."""

    def __init__(self, texts: SharedTexts, records: TokenRecord | None) -> None:
        self._texts, self._records, self._done = texts, records or {}, 0

    def of(self, turn: Turn) -> dict[str, Any]:
        """`shaded`: texts, logprobs and, where recorded, ratio, advantage and value; {} where nothing is to be seen."""
        start, self._done = self._done, self._done + len(turn.token_ids)
        room = MAX_SHADED_TOKENS - start
        was_sampled = len(turn.policy_versions) and int(turn.policy_versions.max()) >= 0
        if room <= 0 or not was_sampled:
            return {}
        texts = self._texts.token_texts([int(token) for token in turn.token_ids[:room]])
        if texts is None:
            return {}
        columns = {name: values[start : start + len(texts)] for name, values in self._records.items()}
        return {"shaded": {"texts": texts, "logprob": _short(turn.logprobs[:room].tolist()), **columns}}


def _short(values: Sequence[float]) -> list[float | None]:
    """Four digits: what a colour can show."""
    return [float(f"{value:.4g}") if math.isfinite(value) else None for value in values]
