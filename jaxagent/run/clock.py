"""The wall time of a run over all its sessions: a run that was stopped and resumed counts every one of them."""

from __future__ import annotations

import json
import time
from pathlib import Path

from jaxagent.files.write import write_json

WRITE_EVERY_S = 10.0
"""A killed session loses at most this much, and what came after its last update."""


class RunClock:
    """Seconds since the run began, less the time in which it stood still."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._earlier = float(json.loads(path.read_text())["seconds"]) if path.exists() else 0.0
        self._started = time.monotonic()
        self._written = self._started

    @property
    def seconds(self) -> float:
        return self._earlier + time.monotonic() - self._started

    def tick(self) -> None:
        """Remembers the time now and then; to be called whenever something is done."""
        if time.monotonic() - self._written >= WRITE_EVERY_S:
            self.save()

    def save(self) -> None:
        write_json(self._path, {"seconds": round(self.seconds, 3)})
        self._written = time.monotonic()
