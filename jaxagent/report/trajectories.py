"""The trajectories of a report: which ones it holds, and how they are cut into chunks that a page decodes on demand.

index    one short row a trajectory: what the list shows and filters by
chunks   gzip of a JSON list of whole trajectories, newest first within a stage
shared   texts that many trajectories have in common: tasks' code, prompts
"""

from __future__ import annotations

import contextlib
import dataclasses
import gzip
import json
import math
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from jaxagent.config.model import PretrainedModelConfig
from jaxagent.config.run import RunConfig
from jaxagent.report.file_history import FileHistory
from jaxagent.run.folder import RunFolder
from jaxagent.synthesis.sources import resolve_tasks
from rollout.chat import ChatFormat
from rollout.store import TrajectoryStore
from rollout.types import Trajectory, Turn
from sandbox.tasks import TaskError
from sandbox.types import Judgement

TRAJECTORIES_PER_STAGE = 200
"""Of every stage and evaluation the last so many are in the report."""
MAX_COMPRESSED_BYTES = 24 << 20
"""Together they may take so much, an equal share for each stage: where texts are long, fewer are in the report."""
_CHUNK_BYTES = 1 << 20
"""A chunk is closed when its JSON is that long: what a page has to decode to show one trajectory."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StageCount:
    stage: str
    shown: int
    stored: int


@dataclass(frozen=True, slots=True, kw_only=True)
class TrajectoryPack:
    """`index` rows name their `chunk` and their `place` in it."""

    index: list[dict[str, Any]]
    chunks: list[bytes]
    shared: dict[str, Any]
    """`tasks`: code by task id; `prompts`: texts, to which a trajectory's `prompt` is the index; `missing`: why some
    of them are not there, for people."""
    counts: list[StageCount]

    @property
    def num_stored(self) -> int:
        return sum(count.stored for count in self.counts)


def pack_trajectories(folder: RunFolder, config: RunConfig) -> TrajectoryPack:
    """Raises StoreError, CorruptStoreError."""
    texts = _SharedTexts(folder, config)
    index: list[dict[str, Any]] = []
    chunks: list[bytes] = []
    counts: list[StageCount] = []
    with contextlib.ExitStack() as open_stores:
        sources = [(store, stage) for store, stage in _sources(folder, config, open_stores) if store.ids(stage)]
        for store, stage in sources:
            ids, used, dropped = store.ids(stage), _updates(store), store.dropped(stage)
            shown, room = 0, MAX_COMPRESSED_BYTES // len(sources)
            for rows, chunk in _chunks(store, ids[::-1][:TRAJECTORIES_PER_STAGE], texts):
                if shown and len(chunk) > room:
                    break
                for place, row in enumerate(rows):
                    where = {"chunk": len(chunks), "place": place}
                    index.append(row | where | {"update": used.get(row["id"]), "dropped": dropped.get(row["id"])})
                chunks.append(chunk)
                shown, room = shown + len(rows), room - len(chunk)
            counts.append(StageCount(stage=stage, shown=shown, stored=len(ids)))
    return TrajectoryPack(index=index, chunks=chunks, shared=texts.to_json(), counts=counts)


def encode_trajectory(trajectory: Trajectory, prompt: int | None) -> dict[str, Any]:
    """Everything a viewer shows of a trajectory, as JSON; `prompt` is its prompt's index among the shared texts."""
    history, versions = FileHistory(), []
    return _json_safe({
        "id": trajectory.trajectory_id,
        "task": trajectory.task_id,
        "stage": trajectory.stage,
        "sample": trajectory.sample_index,
        "seed": trajectory.seed,
        "stop": str(trajectory.stop_reason),
        "seconds": round(trajectory.seconds, 2),
        "judgement": trajectory.judgement.to_json(),
        "prompt": prompt,
        "turns": [_encode_turn(turn, history, versions) for turn in trajectory.turns],
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


def _row(trajectory: Trajectory) -> dict[str, Any]:
    return {
        "id": trajectory.trajectory_id,
        "stage": trajectory.stage,
        "task": trajectory.task_id,
        "outcome": str(trajectory.judgement.outcome),
        "reward": trajectory.judgement.reward,
        "speedup": _speedup(trajectory.judgement),
        "stop": str(trajectory.stop_reason),
        "turns": len(trajectory.turns),
        "tokens": sum(len(turn.token_ids) for turn in trajectory.turns),
        "seconds": round(trajectory.seconds, 2),
    }


def _speedup(judgement: Judgement) -> float | None:
    """Over torch.compile."""
    if not judgement.candidate_ms or judgement.compile_ms is None:
        return None
    return round(judgement.compile_ms / judgement.candidate_ms, 3)


def _chunks(
    store: TrajectoryStore, ids: list[str], texts: _SharedTexts
) -> Iterator[tuple[list[dict[str, Any]], bytes]]:
    """Index rows and the compressed trajectories they belong to, a chunk at a time."""
    rows: list[dict[str, Any]] = []
    parts: list[str] = []
    for trajectory_id in ids:
        trajectory = store.get(trajectory_id)
        rows.append(_row(trajectory))
        parts.append(_dump(encode_trajectory(trajectory, texts.add(trajectory))))
        if sum(map(len, parts)) >= _CHUNK_BYTES:
            yield rows, _compress_list(parts)
            rows, parts = [], []
    if rows:
        yield rows, _compress_list(parts)


def _dump(record: dict[str, Any]) -> str:
    return json.dumps(record, separators=(",", ":"), allow_nan=False)


def _compress_list(parts: list[str]) -> bytes:
    return gzip.compress(f"[{','.join(parts)}]".encode("ascii"), mtime=0)


def _sources(
    folder: RunFolder, config: RunConfig, open_stores: contextlib.ExitStack
) -> Iterator[tuple[TrajectoryStore, str]]:
    """Stores and the stages in them: a stage's own trajectories, then those of the evaluation after it."""

    def open_store(path: Path) -> TrajectoryStore:
        return open_stores.enter_context(TrajectoryStore(path, config.store, writable=False))

    own = open_store(folder.store) if folder.store.is_dir() else None
    for stage in config.stages:
        if own is not None:
            yield own, stage.name
        evaluation = folder.evaluations / stage.name / "store"
        if evaluation.is_dir():
            yield open_store(evaluation), f"evaluation_{stage.name}"


def _updates(store: TrajectoryStore) -> dict[str, str]:
    """trajectory_id -> the updates whose batch it was in."""
    uses: dict[str, list[str]] = {}
    for manifest in store.manifests():
        for name in manifest.trajectory_ids:
            uses.setdefault(name, []).append(f"{manifest.stage} {manifest.update}")
    return {name: ", ".join(f"{use} ({n} times)" if n > 1 else use for use, n in Counter(updates).items())
            for name, updates in uses.items()}  # fmt: skip


class _SharedTexts:
    """Prompts and tasks' code, each once. Where its source is gone (a run that was moved) a reason stands in."""

    def __init__(self, folder: RunFolder, config: RunConfig) -> None:
        self._prompts: dict[bytes, int] = {}
        self._texts: list[str] = []
        self._missing: list[str] = []
        self._used_tasks: set[str] = set()
        self._tasks = self._load_tasks(config)
        self._chat = self._load_chat(folder, config)

    def add(self, trajectory: Trajectory) -> int | None:
        """Index of the trajectory's opening; None where it cannot be decoded, or the policy speaks text only."""
        self._used_tasks.add(trajectory.task_id)
        if self._chat is None or not trajectory.turns or not len(trajectory.turns[0].prompt_token_ids):
            return None
        token_ids = trajectory.turns[0].prompt_token_ids
        key = token_ids.tobytes()
        if key not in self._prompts:
            self._prompts[key] = len(self._texts)
            self._texts.append(self._chat.decode_raw(token_ids))
        return self._prompts[key]

    def to_json(self) -> dict[str, Any]:
        tasks = {task: self._tasks[task] for task in sorted(self._used_tasks) if task in self._tasks}
        return {"tasks": tasks, "prompts": self._texts, "missing": self._missing}

    def _load_tasks(self, config: RunConfig) -> dict[str, str]:
        codes: dict[str, str] = {}
        for source in (config.tasks.train, config.tasks.heldout):
            try:
                codes |= {task.task_id: task.code for task in resolve_tasks(source)}
            except (TaskError, OSError) as error:
                self._missing.append(f"code of the tasks in {source}: {error}")
        return codes

    def _load_chat(self, folder: RunFolder, config: RunConfig) -> ChatFormat | None:
        model = config.model.path.expanduser() if isinstance(config.model, PretrainedModelConfig) else None
        try:
            return ChatFormat.from_folder(model or folder.initial_model)
        except OSError as error:
            self._missing.append(f"prompts: {error}")
            return None
