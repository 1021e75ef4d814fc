"""Where weights and inputs lie in an arena."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from sandbox.judge.arena import TABLE_BYTES, align, span_bytes
from sandbox.judge.values import ITEMSIZE

MAX_SLOTS = 33
_DEVICE_SOURCES = 4
"""On a GPU the arena only holds what is copied there to be mixed (sandbox.judge.fresh)."""
SCRATCH_BYTES = 64 << 20
_MAX_ARENA_BYTES = 256 << 20


@dataclass(slots=True)
class Layout:
    """Where weights and inputs lie in an arena."""

    weights: list[dict[str, Any]]
    slots: list[list[int]]
    slot_bytes: int
    scratch: int
    """Where, on a GPU, memory begins through which outputs go to the oracle to be compared there."""
    size: int
    leaves: list[dict[str, Any]]

    @classmethod
    def plan(cls, leaves: list[dict[str, Any]], weights: list[dict[str, Any]], device: str) -> Layout:
        offset, placed = TABLE_BYTES, []
        for leaf in weights:
            placed.append({key: leaf[key] for key in ("name", "dtype", "shape", "stride")} | {"offset": offset})
            offset = align(offset + span_bytes(leaf, ITEMSIZE[leaf["dtype"]]))
        sizes = [align(span_bytes(leaf, ITEMSIZE[leaf["dtype"]])) for leaf in leaves]
        slot_bytes = sum(sizes)
        most = MAX_SLOTS if device == "cpu" else _DEVICE_SOURCES
        num_slots = max(3, min(most, _MAX_ARENA_BYTES // max(slot_bytes, 1)))
        slots, end = [], offset
        for _ in range(num_slots):
            slots.append([end + sum(sizes[:index]) for index in range(len(sizes))])
            end += slot_bytes
        scratch = max(end, TABLE_BYTES)
        size = scratch if device == "cpu" else scratch + SCRATCH_BYTES
        return cls(placed, slots, slot_bytes, scratch, size, leaves)

    def slot_range(self, slot: int) -> slice:
        start = self.slots[slot][0] if self.slots[slot] else 0
        return slice(start, start + self.slot_bytes)
