"""Fresh inputs for every timed call: what lies in the slots of a judgement, round after round.

Contents are natural draws as far as the time for drawing goes; beyond that, mixtures of recent draws at their places,
which no earlier call has seen: on a CPU element by element, so that not even a row returns and answers that were kept
row by row are of no use, on a GPU block by block. Integers come from one draw, as they index into something.

    HostSlots     the supervisor writes contents into the oracle's arena, from where they go to the candidate's
    DeviceSlots   draws are copied to the GPU once, in both processes, and mixed there by the same recipe: nothing
                  of the size of an input crosses a bus while the clock's rounds go on
"""

from __future__ import annotations

import secrets
import statistics
import time
from collections import deque
from typing import Protocol

import numpy as np

from sandbox.judge.arena import read_memory, span_bytes
from sandbox.judge.candidate_side import CandidateSide
from sandbox.judge.layout import MAX_SLOTS
from sandbox.judge.oracle_side import OracleSide
from sandbox.judge.values import FLOATS, ITEMSIZE

_WARM_SLOTS = 4
_POOL = 4
_DRAW_BUDGET_S = 0.06
"""Of all timed rounds."""
_DEVICE_DRAW_BUDGET_S = 0.02
"""Shorter, since everything else on the GPU may be waiting."""
_MIX_BLOCKS = 8
_WORDS = {2: np.uint16, 4: np.uint32, 8: np.uint64, 16: np.uint64}
"""By the size of an element, what it is a whole number of."""
_SHIFTS = 1 << 18
"""Places where a mask may begin: among hundreds of mixtures of few draws hardly two are the same."""
_MIXED_AT_ONCE = 1 << 15
"""Words that fit a cache, beside as many of the other array and of the mask."""
_DEVICE_SLOTS_BYTES = 512 << 20
_LEAST_SLOTS = 3


class Slots(Protocol):
    """Contents of the inputs that calls are made with."""

    every: list[int]
    """Numbers of the slots that calls may take."""
    filled: list[int]
    """Those of them that `fill` fills."""

    def fill(self) -> None:
        """Some contents, for the warm-up."""
        ...

    def for_calls(self, count: int) -> list[int]:
        """Of which a batch of up to so many calls takes some."""
        ...

    def refresh(self, slots: list[int], *, timed: bool = True) -> None:
        """New contents for the calls of a round, or of a batch that is only looked at."""
        ...


def make_slots(oracle: OracleSide, candidate: CandidateSide | None, *, rounds: int) -> Slots:
    """`candidate`: where the reference is timed alone, None."""
    if oracle.device == "cuda":
        return DeviceSlots(oracle, candidate)
    return HostSlots(oracle, rounds=rounds)


class HostSlots:
    """Slots of the oracle's arena."""

    def __init__(self, oracle: OracleSide, *, rounds: int) -> None:
        self._oracle = oracle
        self._rounds = rounds
        self._types = [(leaf["dtype"], ITEMSIZE[leaf["dtype"]]) for leaf in oracle.layout.leaves]
        self._sizes = [span_bytes(leaf, ITEMSIZE[leaf["dtype"]]) for leaf in oracle.layout.leaves]
        self._pool: deque[list[bytearray]] = deque(maxlen=_POOL)
        """Bytes of recent draws, the newest last."""
        self._draw_s: list[float] = []
        self._mixer = Mixer()
        self.every = list(range(len(oracle.layout.slots)))
        self.filled = self.every[:_WARM_SLOTS]

    def fill(self) -> None:
        """One draw in all of them."""
        drawn = self._draw()
        for slot in self.filled:
            self._write(slot, drawn)

    def for_calls(self, count: int) -> list[int]:
        """Not more than it takes: memory that no call has touched yet costs its first one time."""
        return self.every[: max(len(self.filled), 2 * count)]

    def refresh(self, slots: list[int], *, timed: bool = True) -> None:
        """Natural draws for a part of the slots, as long as drawing takes no more than its part of the budget; one at
        least where calls are timed."""
        natural = 0
        if timed:
            cost = statistics.median(self._draw_s)
            natural = max(1, int(_DRAW_BUDGET_S / self._rounds / max(cost, 1e-6)))
        for index, slot in enumerate(slots):
            if index < natural or len(self._pool) < 2:
                self._write(slot, self._draw())
            else:
                self._mix(slot)

    def _draw(self) -> list[bytearray]:
        began = time.perf_counter()
        key, leaves = self._oracle.draw()
        full = len(self._pool) == _POOL  # new memory takes as long as what is read into it
        drawn = self._pool.popleft() if full else [bytearray(size) for size in self._sizes]
        for leaf, memory, size in zip(leaves, drawn, self._sizes, strict=True):
            read_memory(self._oracle.worker.pid, leaf["address"], memory, 0, size)
        self._oracle.forget([key])
        self._pool.append(drawn)
        self._draw_s.append(time.perf_counter() - began)
        return drawn

    def _write(self, slot: int, drawn: list[bytearray]) -> None:
        for target, data in zip(self._places(slot), drawn, strict=True):
            target[:] = data

    def _mix(self, slot: int) -> None:
        whole, others = secrets.SystemRandom().sample(list(self._pool), 2)
        for target, mine, other, (dtype, itemsize) in zip(self._places(slot), whole, others, self._types, strict=True):
            if dtype in FLOATS and mine:
                self._mixer.mix(target, mine, other, itemsize)
            else:
                target[:] = mine

    def _places(self, slot: int) -> list[memoryview]:
        memory = memoryview(self._oracle.worker.arena.memory)  # type: ignore[union-attr]
        starts = self._oracle.layout.slots[slot]
        return [memory[start : start + size] for start, size in zip(starts, self._sizes, strict=True)]


class Mixer:
    """Mixes elements of two arrays at random.

    Its mask is drawn once and shifted for every mixture: a new one each time takes several times as long as mixing.
    """

    def __init__(self) -> None:
        self._masks: dict[int, np.ndarray] = {}
        """By the size of an element: words of which all bits are set, or none."""

    def mix(self, target: memoryview, one: bytearray, other: bytearray, itemsize: int) -> None:
        """Each element of `target` becomes, at random, that of `one` or of `other` at the same place."""
        word = np.dtype(_WORDS[itemsize])
        words = itemsize // word.itemsize
        mask = self._mask(word, words, len(one) // itemsize)[secrets.randbelow(_SHIFTS) * words :]
        result, first, second = (np.frombuffer(memory, dtype=word) for memory in (target, one, other))
        changed = np.empty(_MIXED_AT_ONCE, word)
        for start in range(0, result.size, _MIXED_AT_ONCE):
            block = slice(start, start + _MIXED_AT_ONCE)
            part = first[block]
            bits = np.bitwise_xor(part, second[block], out=changed[: part.size])
            bits &= mask[start : start + part.size]
            np.bitwise_xor(part, bits, out=result[block])

    def _mask(self, word: np.dtype, words: int, count: int) -> np.ndarray:
        itemsize, needed = word.itemsize * words, count + _SHIFTS
        mask = self._masks.get(itemsize)
        if mask is None or mask.size < needed * words:
            bits = np.frombuffer(secrets.token_bytes(-(-needed // 8)), dtype=np.uint8)
            mask = np.repeat(np.unpackbits(bits, count=needed).astype(word), words)
            self._masks[itemsize] = np.negative(mask, out=mask)
        return mask


class DeviceSlots:
    """Slots in the memory of the GPU, numbered after those of the arena, which hold the draws that are mixed."""

    def __init__(self, oracle: OracleSide, candidate: CandidateSide | None) -> None:
        self._oracle = oracle
        self._candidate = candidate
        self._sources = list(range(len(oracle.layout.slots)))
        room = _DEVICE_SLOTS_BYTES // max(oracle.layout.slot_bytes, 1)
        first = len(self._sources)
        self.every = self.filled = list(range(first, first + max(_LEAST_SLOTS, min(MAX_SLOTS, room))))
        self._drawing_s = 0.0
        self._oldest = 0

    def fill(self) -> None:
        """Draws for all sources, then mixtures of them."""
        for source in self._sources:
            self._draw_into(source)
        for slot in self.every:
            self._oracle.mixes[slot] = self._recipe()

    def for_calls(self, count: int) -> list[int]:
        return self.every

    def refresh(self, slots: list[int], *, timed: bool = True) -> None:
        """One source is drawn anew, as long as that takes little time in all."""
        if self._drawing_s < _DEVICE_DRAW_BUDGET_S:
            began = time.perf_counter()
            self._draw_into(self._sources[self._oldest])
            self._oldest = (self._oldest + 1) % len(self._sources)
            self._drawing_s += time.perf_counter() - began
        for slot in slots:
            self._oracle.mixes[slot] = self._recipe()

    def _draw_into(self, source: int) -> None:
        draw = self._oracle.draw()
        self._oracle.fill(source, draw)
        self._oracle.forget([draw[0]])
        self._oracle.ask({"op": "stage", "slots": [source]})
        if self._candidate is not None:
            self._candidate.stage(self._oracle, [source])

    def _recipe(self) -> list[list[list[int]]]:
        """For each input its pieces: [source, first element, past the last]."""
        whole = secrets.choice(self._sources)
        recipe = []
        for leaf in self._oracle.layout.leaves:
            total = span_bytes(leaf, ITEMSIZE[leaf["dtype"]]) // ITEMSIZE[leaf["dtype"]]
            if leaf["dtype"] not in FLOATS:
                recipe.append([[whole, 0, total]])
                continue
            edges = sorted({0, total, *(int(edge) for edge in np.random.randint(0, total + 1, _MIX_BLOCKS))})
            pieces = zip(edges, edges[1:], strict=False)
            recipe.append([[secrets.choice(self._sources), start, end] for start, end in pieces])
        return recipe
