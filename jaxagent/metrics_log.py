"""Where a run's numbers go: metrics.jsonl always, TensorBoard beside it."""

from __future__ import annotations

import json
import math
import os
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from jaxagent.run_folder import RunFolder, write_atomically


class MetricsLog:
    """One line of metrics.jsonl an update: `{"stage", "update", "step", "time", name: number, …}`.

    `step` counts the updates of all stages. A line is written whole or, after a crash, cut off by the next start.
    """

    def __init__(self, folder: RunFolder) -> None:
        from tensorboardX import SummaryWriter  # takes seconds to import, and readers of metrics need none

        self._path = folder.metrics
        _cut_torn_line(self._path)
        self._file = self._path.open("a")
        self._writer = SummaryWriter(str(folder.tensorboard))
        self._step = sum(1 for _ in read_metrics(self._path))

    def write(self, *, stage: str, update: int, values: Mapping[str, Any]) -> None:
        record = {"stage": stage, "update": update, "step": self._step, "time": round(time.time(), 3)}
        self._file.write(json.dumps(record | {name: _finite(value) for name, value in values.items()}) + "\n")
        self._file.flush()
        for name, value in values.items():
            if isinstance(value, int | float) and math.isfinite(value):
                self._writer.add_scalar(f"{stage}/{name}", value, update)
        self._step += 1

    def forget(self, *, stage: str, from_update: int) -> None:
        """Removes what a run wrote after the checkpoint that it now resumes from: those updates are done again."""
        records = list(read_metrics(self._path))
        kept = [r for r in records if not (r["stage"] == stage and r["update"] >= from_update)]
        if len(kept) == len(records):
            return
        self._file.close()
        write_atomically(self._path, "".join(json.dumps(record) + "\n" for record in kept))
        self._file = self._path.open("a")
        self._step = len(kept)

    def close(self) -> None:
        self._file.close()
        self._writer.close()


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
