"""What PPO did to single tokens of a few trajectories of every batch: kept for people to look at.

One file an update: a JSON object {trajectory_id: {"ratio": […], "advantage": […], "value": […]}}, one entry a sampled
token in the order of the turns; null where a skipped step left a number that is none. A repeated update writes the
same file again.
"""

from __future__ import annotations

import json
from pathlib import Path

from jaxagent.files.write import write_atomically

TokenRecord = dict[str, list[float | None]]
TokenRecords = dict[str, TokenRecord]
"""By trajectory id."""


def write_token_records(folder: Path, stage: str, update: int, records: TokenRecords) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"{stage}-{update:06d}.json"
    write_atomically(path, json.dumps(records, separators=(",", ":")))
    return path


def read_token_records(folder: Path) -> TokenRecords:
    """Those of all updates; of a trajectory in several batches the last one that was written, by name of the file."""
    records: TokenRecords = {}
    for path in sorted(folder.glob("*.json")):
        records |= json.loads(path.read_text())
    return records
