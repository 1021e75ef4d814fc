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
from typing import Protocol

import numpy as np

from sandbox.judge.arena import read_memory, span_bytes
from sandbox.judge.candidate_side import CandidateSide
from sandbox.judge.layout import MAX_SLOTS
from sandbox.judge.oracle_side import Draw, OracleSide
from sandbox.judge.values import FLOATS, ITEMSIZE

_DRAW_BUDGET_S = 0.12
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

    def fill_all(self) -> None:
        """Some contents for every slot, for the warm-up."""
        ...

    def refresh(self, slots: list[int]) -> None:
        """New contents for the calls of a round."""
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
        self._pool: list[Draw] = []
        self._draw_s: list[float] = []
        self._mixer = Mixer()
        self.every = list(range(len(oracle.layout.slots)))

    def fill_all(self) -> None:
        """One draw in every slot."""
        draw = self._oracle.draw()
        for slot in self.every:
            self._oracle.fill(slot, draw)

    def refresh(self, slots: list[int]) -> None:
        natural = len(slots)
        if self._draw_s:
            cost = statistics.median(self._draw_s)
            natural = max(1, min(natural, int(_DRAW_BUDGET_S / self._rounds / max(cost, 1e-6))))
        for index, slot in enumerate(slots):
            if index < natural or len(self._pool) < 2:
                began = time.perf_counter()
                self._pool.append(self._oracle.draw())
                self._draw_s.append(time.perf_counter() - began)
                self._oracle.fill(slot, self._pool[-1])
            else:
                self._mix(slot)
        self._oracle.forget([key for key, _ in self._pool[:-4]])
        del self._pool[:-4]

    def _mix(self, slot: int) -> None:
        pid, memory = self._oracle.worker.pid, self._oracle.worker.arena.memory  # type: ignore[union-attr]
        (_, whole), (_, others) = secrets.SystemRandom().sample(self._pool, 2)
        for leaf, other, offset in zip(whole, others, self._oracle.layout.slots[slot], strict=True):
            itemsize = ITEMSIZE[leaf["dtype"]]
            total = span_bytes(leaf, itemsize)
            read_memory(pid, leaf["address"], memory, offset, total)
            if leaf["dtype"] in FLOATS and total:
                drawn = bytearray(total)
                read_memory(pid, other["address"], drawn, 0, total)
                self._mixer.mix(memoryview(memory)[offset : offset + total], drawn, itemsize)


class Mixer:
    """Mixes elements of two arrays at random.

    Its mask is drawn once and shifted for every mixture: a new one each time takes several times as long as mixing.
    """

    def __init__(self) -> None:
        self._masks: dict[int, np.ndarray] = {}
        """By the size of an element: words of which all bits are set, or none."""

    def mix(self, target: memoryview, source: bytearray, itemsize: int) -> None:
        """Overwrites half of the elements of `target`, at random, with those of `source` at the same places."""
        word = np.dtype(_WORDS[itemsize])
        words = itemsize // word.itemsize
        mask = self._mask(word, words, len(source) // itemsize)[secrets.randbelow(_SHIFTS) * words :]
        mine, theirs = (np.frombuffer(memory, dtype=word) for memory in (target, source))
        changed = np.empty(_MIXED_AT_ONCE, word)
        for start in range(0, mine.size, _MIXED_AT_ONCE):
            part = mine[start : start + _MIXED_AT_ONCE]
            block = slice(start, start + part.size)
            bits = np.bitwise_xor(part, theirs[block], out=changed[: part.size])
            bits &= mask[block]
            part ^= bits

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
        self.every = list(range(first, first + max(_LEAST_SLOTS, min(MAX_SLOTS, room))))
        self._drawing_s = 0.0
        self._oldest = 0

    def fill_all(self) -> None:
        """Draws for all sources, then mixtures of them."""
        for source in self._sources:
            self._draw_into(source)
        for slot in self.every:
            self._oracle.mixes[slot] = self._recipe()

    def refresh(self, slots: list[int]) -> None:
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
