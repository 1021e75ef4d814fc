"""Scalars for TensorBoard, written where they are logged.

tensorboardX's SummaryWriter writes in a thread behind a short queue: on a full disk the thread dies, and whoever logs
next waits for it for ever. Its EventsWriter writes at once, and raises.
"""

from __future__ import annotations

import math
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any


class TensorBoardLog:
    """One event file of one session. Raises OSError where it cannot be written."""

    def __init__(self, folder: Path) -> None:
        from tensorboardX.event_file_writer import EventsWriter  # takes seconds to import: readers need none of it
        from tensorboardX.proto import event_pb2
        from tensorboardX.summary import scalar

        folder.mkdir(parents=True, exist_ok=True)
        self._scalar = scalar
        self._messages: Any = event_pb2  # its classes are made when it is imported
        self._writer = EventsWriter(str(folder / "events"))

    def write(self, stage: str, update: int, values: Mapping[str, Any]) -> None:
        """What is a finite number, as `stage/name` at step `update`."""
        for name, value in values.items():
            if isinstance(value, int | float) and math.isfinite(value):
                summary = self._scalar(f"{stage}/{name}", value)
                self._writer.write_event(self._messages.Event(wall_time=time.time(), step=update, summary=summary))
        self._writer.flush()

    def close(self) -> None:
        self._writer.close()
