"""From the arrays of a PPO update to records of single tokens (jaxagent.run.token_records)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from jaxagent.batches.minibatch import Minibatch
from jaxagent.run.token_records import TokenRecords

TRAJECTORIES_AN_UPDATE = 4


def token_records(
    minibatches: Sequence[Minibatch], arrays: Sequence[Mapping[str, np.ndarray]], *, limit: int = TRAJECTORIES_AN_UPDATE
) -> TokenRecords:
    """Of the first `limit` trajectories; `arrays` has [M, B, T] arrays on the host by name, one mapping a minibatch."""
    records: TokenRecords = {}
    for minibatch, named in zip(minibatches, arrays, strict=True):
        gathered = {name: minibatch.packed.gather(array) for name, array in named.items()}
        for place, sequence in enumerate(minibatch.sequences):
            if len(records) == limit:
                return records
            records[sequence.trajectory_id] = {
                name: [_short(value) for value in by_sequence[place][sequence.loss_mask]]
                for name, by_sequence in gathered.items()
            }
    return records


def _short(value: np.floating) -> float | None:
    return float(f"{value:.4g}") if np.isfinite(value) else None
