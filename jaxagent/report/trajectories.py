"""The trajectories of a report: which ones it holds, and how they are cut into chunks that a page decodes on demand.

index    one short row for every trajectory, newest first: what the list shows and filters by
chunks   gzip of a JSON list of whole trajectories of one stage, newest first, as far as there is room
shared   texts that many trajectories have in common: tasks' code, prompts
"""

from __future__ import annotations

import contextlib
import gzip
import json
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from jaxagent.config.run import RunConfig
from jaxagent.report.shared_texts import SharedTexts
from jaxagent.report.trajectory_json import encode_trajectory
from jaxagent.run.folder import RunFolder, starting_model
from jaxagent.run.token_records import TokenRecords, read_token_records
from rollout.store import TrajectoryStore
from rollout.types import Trajectory
from sandbox.types import Judgement

MAX_COMPRESSED_BYTES = 24 << 20
"""All trajectories are listed; texts of the newest may take so much, an equal share for each stage."""
_CHUNK_BYTES = 1 << 20
"""A chunk is closed when its JSON is that long: what a page has to decode to show one trajectory."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StageCount:
    stage: str
    shown: int
    stored: int


@dataclass(frozen=True, slots=True, kw_only=True)
class TrajectoryPack:
    """`index` rows name their `chunk` and their `place` in it; both None where the text has no room."""

    index: list[dict[str, Any]]
    chunks: list[bytes]
    shared: dict[str, Any]
    """`tasks`: code by task id; `prompts`: texts, to which a trajectory's `prompt` is the index; `missing`: why some
    of them are not there, for people."""
    counts: list[StageCount]
    """In the order in which the stages ran."""

    @property
    def num_stored(self) -> int:
        return sum(count.stored for count in self.counts)


def pack_run(folder: RunFolder, config: RunConfig) -> TrajectoryPack:
    """Those of a run's stages and of the evaluations after them. Raises StoreError, CorruptStoreError."""
    texts = SharedTexts(starting_model(config, folder), (config.tasks.train, config.tasks.heldout))
    with contextlib.ExitStack() as open_stores:
        sources = list(_sources(folder, config, open_stores))
        return pack_trajectories(sources, texts, read_token_records(folder.tokens))


def pack_trajectories(
    sources: Sequence[tuple[TrajectoryStore, str]], texts: SharedTexts, records: TokenRecords
) -> TrajectoryPack:
    """`sources`: stores and the stages in them, in the order in which they ran; `records` as far as updates wrote them.

    Trajectories carry no time. A stage begins when the one before it is over, so that the order of the stages, and
    within each that of the log, is the order of time.
    """
    index: list[dict[str, Any]] = []
    chunks: list[bytes] = []
    counts: list[StageCount] = []
    sources = [(store, stage) for store, stage in sources if store.ids(stage)]
    for store, stage in reversed(sources):
        writer = _ChunkWriter(chunks, room=MAX_COMPRESSED_BYTES // len(sources))
        used, dropped = _updates(store), store.dropped(stage)
        for trajectory_id in reversed(store.ids(stage)):
            trajectory = store.get(trajectory_id)
            row = _row(trajectory) | {"update": used.get(trajectory_id), "dropped": dropped.get(trajectory_id)}
            index.append(row | {"chunk": None, "place": None})
            if not writer.is_full:
                writer.add(index[-1], encode_trajectory(trajectory, texts, records.get(trajectory_id)))
        writer.close()
        counts.append(StageCount(stage=stage, shown=writer.num_written, stored=len(store.ids(stage))))
    return TrajectoryPack(index=index, chunks=chunks, shared=texts.to_json(), counts=counts[::-1])


class _ChunkWriter:
    """Appends trajectories to chunks until its room is used; always takes at least one."""

    def __init__(self, chunks: list[bytes], *, room: int) -> None:
        self._chunks, self._room = chunks, room
        self._rows: list[dict[str, Any]] = []
        self._parts: list[str] = []
        self._num_chars = 0
        self.num_written = 0

    @property
    def is_full(self) -> bool:
        return self._room <= 0

    def add(self, row: dict[str, Any], record: dict[str, Any]) -> None:
        """`row` gets its chunk and place when the chunk is written."""
        self._rows.append(row)
        self._parts.append(json.dumps(record, separators=(",", ":"), allow_nan=False))
        self._num_chars += len(self._parts[-1])
        if self._num_chars >= _CHUNK_BYTES:
            self.close()

    def close(self) -> None:
        if not self._rows:
            return
        for place, row in enumerate(self._rows):
            row.update(chunk=len(self._chunks), place=place)
        self._chunks.append(gzip.compress(f"[{','.join(self._parts)}]".encode("ascii"), mtime=0))
        self.num_written += len(self._rows)
        self._room -= len(self._chunks[-1])
        self._rows, self._parts, self._num_chars = [], [], 0


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
