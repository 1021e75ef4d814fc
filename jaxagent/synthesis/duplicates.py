"""Duplicates within a set of tasks: the same program in other words, or the same operators on nearly the same sizes."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from datasketch import MinHash, MinHashLSH

from jaxagent.synthesis.normal_form import normalised, tokens_of
from jaxagent.synthesis.reasons import FilterConfig, Finding, Reason
from jaxagent.synthesis.similarity import Structure, similarity
from sandbox.taskcheck.probe import Evidence

PERMUTATIONS = 128
_SEED, _RUN = 1, 5
_LSH_MARGIN = 0.75
"""The index is asked with a lower bound than wanted: its own estimate errs by about 1/sqrt(PERMUTATIONS)."""
_MIN_STRUCTURE = 0.9


@dataclass(frozen=True, slots=True)
class Signature:
    """The operators that a task ran, in order, and what it ran on: (type, shape) of every input tensor."""

    operators: tuple[str, ...]
    inputs: tuple[tuple[str, tuple[int, ...]], ...]

    @classmethod
    def of(cls, evidence: Evidence) -> Signature:
        inputs = tuple((leaf["dtype"], tuple(leaf["shape"])) for leaf in evidence["build"]["inputs"])
        return cls(tuple(evidence["examine"]["operators"]), inputs)

    def is_near(self, other: Signature, max_ratio: float) -> bool:
        """The same operators in the same order, types and ranks, and every size within `max_ratio`."""
        if self.operators != other.operators or len(self.inputs) != len(other.inputs):
            return False
        return all(
            mine[0] == theirs[0]
            and len(mine[1]) == len(theirs[1])
            and all(max(a, b) <= max_ratio * min(a, b) for a, b in zip(mine[1], theirs[1], strict=True))
            for mine, theirs in zip(self.inputs, other.inputs, strict=True)
        )


class DuplicateIndex:
    """Tasks seen so far; the first of several alike stays. Ask and add in the order of the set."""

    def __init__(self, config: FilterConfig) -> None:
        self._config = config
        self._exact: dict[str, str] = {}
        self._near = MinHashLSH(threshold=_LSH_MARGIN * config.min_jaccard, num_perm=PERMUTATIONS)
        self._entries: dict[str, tuple[MinHash, Structure, Signature]] = {}

    def exact(self, code: str) -> Finding | None:
        """The same program but for comments, layout and names."""
        other = self._exact.get(normalised(code))
        return None if other is None else Finding(Reason.DUPLICATE, f"the same program as {other}, but for names")

    def near(self, code: str, evidence: Evidence) -> Finding | None:
        """Nearly the same text and structure, the same operators, on nearly the same sizes."""
        mine, structure, signature = sketch_of(code), Structure(code), Signature.of(evidence)
        for name in sorted(map(str, self._near.query(mine))):
            other, other_structure, other_signature = self._entries[name]
            jaccard = mine.jaccard(other)
            if jaccard < self._config.min_jaccard or not signature.is_near(
                other_signature, self._config.max_size_ratio
            ):
                continue
            alike = similarity(structure, other_structure)
            if alike > _MIN_STRUCTURE:
                what = f"operators and sizes like {name}; {jaccard:.0%} of its tokens, structure {alike:.2f}"
                return Finding(Reason.DUPLICATE, what)
        return None

    def add(self, name: str, code: str, evidence: Evidence) -> None:
        """`name` is unique in the set."""
        self._exact.setdefault(normalised(code), name)
        sketch = sketch_of(code)
        self._near.insert(name, sketch)
        self._entries[name] = (sketch, Structure(code), Signature.of(evidence))


def sketch_of(code: str) -> MinHash:
    """MinHash of the runs of five tokens of the normal form, numbers blanked."""
    tokens = tokens_of(code)
    runs: set[Any] = {" ".join(tokens[i : i + _RUN]).encode() for i in range(max(1, len(tokens) - _RUN + 1))}
    sketch = MinHash(num_perm=PERMUTATIONS, seed=_SEED)
    sketch.update_batch(sorted(runs))
    return sketch
