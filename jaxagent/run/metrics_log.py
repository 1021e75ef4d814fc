"""Where a run's numbers go: metrics.jsonl and TensorBoard always, trackers beside them where they are asked for."""

from __future__ import annotations

import json
import logging
import math
import os
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from jaxagent.files.disk import named
from jaxagent.files.write import write_atomically
from jaxagent.run.folder import RunFolder
from jaxagent.run.tensorboard_log import TensorBoardLog
from jaxagent.run.trackers import Trackers

logger = logging.getLogger(__name__)


class MetricsLog:
    """One line of metrics.jsonl an update: `{"stage", "update", "step", "time", name: number, …}`.

    `step` counts the updates of all stages. A line is written whole or not at all; what a crash leaves of one is cut
    off by the next start. Raises OSError (disk full) with the name of the file.
    """

    def __init__(self, folder: RunFolder, trackers: Trackers | None = None) -> None:
        self._path, self._trackers = folder.metrics, trackers or Trackers([])
        _cut_torn_line(self._path)
        self._file = self._path.open("ab", buffering=0)
        self._tensorboard = TensorBoardLog(folder.tensorboard)
        self._step = sum(1 for _ in read_metrics(self._path))

    def write(self, *, stage: str, update: int, values: Mapping[str, Any]) -> None:
        record = {"stage": stage, "update": update, "step": self._step, "time": round(time.time(), 3)}
        self._append(json.dumps(record | {name: _finite(value) for name, value in values.items()}) + "\n")
        self._tensorboard.write(stage, update, values)
        self._trackers.write(stage, self._step, values)
        self._step += 1

    def _append(self, line: str) -> None:
        end, left = self._file.seek(0, os.SEEK_END), memoryview(line.encode())
        try:
            while left:
                left = left[self._file.write(left) :]
        except OSError as error:
            self._file.truncate(end)
            raise named(error, self._path) from error

    def forget(self, *, stage: str, from_update: int) -> None:
        """Removes what a run wrote after the checkpoint that it now resumes from: those updates are done again."""
        records = list(read_metrics(self._path))
        kept = [r for r in records if not (r["stage"] == stage and r["update"] >= from_update)]
        if len(kept) == len(records):
            return
        self._file.close()
        write_atomically(self._path, "".join(json.dumps(record) + "\n" for record in kept))
        self._file = self._path.open("ab", buffering=0)
        self._step = len(kept)

    def close(self) -> None:
        """Safe on a full disk: the error that ended the run is the one to be seen."""
        self._file.close()
        self._trackers.close()
        try:
            self._tensorboard.close()
        except OSError as error:
            logger.warning("TensorBoard's file was not written to its end: %s", error)


def read_metrics(path: Path) -> Iterator[dict[str, Any]]:
    if not path.exists():
        return
    with path.open() as file:
        for line in file:
            if line.endswith("\n"):  # the last one may be under way
                yield json.loads(line)


def _cut_torn_line(path: Path) -> None:
    if not path.exists():
        return
    text = path.read_bytes()
    end = text.rfind(b"\n") + 1
    if end != len(text):
        os.truncate(path, end)


def _finite(value: Any) -> Any:
    """JSON has no NaN; null says that there is no number."""
    return None if isinstance(value, float) and not math.isfinite(value) else value
