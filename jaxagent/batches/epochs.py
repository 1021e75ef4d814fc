"""In which order logged trajectories are trained on: every one once an epoch, in a seeded order."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence

import numpy as np


def epoch_groups(num_items: int, *, group_size: int, seed: int, stage: str, epoch: int) -> list[list[int]]:
    """Indices 0 .. num_items - 1 in groups of about equal size, at most group_size, shuffled anew each epoch."""
    order = np.random.default_rng([seed, stable_number(stage), epoch]).permutation(num_items)
    num_groups = -(-num_items // group_size)
    return [group.tolist() for group in np.array_split(order, num_groups)]


def stable_number(text: str) -> int:
    """The same number for the same text in every process."""
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:8], "big")


def digest(ids: Sequence[str]) -> str:
    return hashlib.sha256("\n".join(ids).encode()).hexdigest()[:16]
