"""Why a candidate task is dropped, and the settings that decide it."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from enum import StrEnum
from pathlib import Path
from typing import Any

from pydantic import Field, model_validator

from sandbox.config import Config


class Reason(StrEnum):
    """In the order in which the rules are asked; the first that applies is the task's reason."""

    SYNTAX_ERROR = "syntax_error"
    NO_MODEL = "no_model"
    MISSING_GET_INPUTS = "missing_get_inputs"
    IMPORT_FORBIDDEN = "import_forbidden"
    HANGS = "hangs"
    PRINTS_OR_READS_FILES = "prints_or_reads_files"
    INPUT_SHAPE_MISMATCH = "input_shape_mismatch"
    EAGER_FAILS = "eager_fails"
    NON_TENSOR_OUTPUT = "non_tensor_output"
    MUTATES_INPUTS = "mutates_inputs"
    STOCHASTIC = "stochastic"
    CONSTANT_OUTPUT = "constant_output"
    INDISTINGUISHABLE_OUTPUT = "indistinguishable_output"
    TOO_MANY_OPS = "too_many_ops"
    TOO_SLOW = "too_slow"
    TOO_FAST = "too_fast"
    DUPLICATE = "duplicate"
    KERNELBENCH_SIMILAR = "kernelbench_similar"
    COMPILE_FAILS = "compile_fails"


@dataclass(frozen=True, slots=True)
class Finding:
    """A rule's objection: the reason, and the figures or words it rests on."""

    reason: Reason
    detail: str

    def to_json(self) -> dict[str, Any]:
        return asdict(self)


class FilterConfig(Config):
    """What a kept task has to satisfy."""

    min_ms: float = Field(default=1.0, gt=0)
    max_ms: float = Field(default=100.0, gt=0)
    """Median time of torch eager on the target device (paper: 1–100 ms)."""
    max_operators: int = Field(default=5, gt=0)
    """Operators that run in one forward pass (paper: at most 5 are composed)."""
    min_signal: float = Field(default=10.0, gt=0)
    """Least effect of other inputs, or other weights, on the output, in units of the judge's tolerance."""
    max_noise: float = Field(default=10.0, gt=0)
    """Most that two runs on the same inputs may differ, in the same units: sums in another order stay far below."""
    saturated_share: float = Field(default=0.99, gt=0, le=1)
    """An output is saturated where this share of its elements never changes."""
    allowed_imports: tuple[str, ...] = (
        "torch",
        "transformers",
        "numpy",
        "math",
        "typing",
        "dataclasses",
        "functools",
        "itertools",
        "collections",
        "enum",
        "abc",
        "operator",
        "numbers",
        "copy",
        "warnings",
        "contextlib",
        "random",
        "time",
        "__future__",
    )
    min_jaccard: float = Field(default=0.85, gt=0, le=1)
    """Share of common runs of tokens from which two tasks with the same operators may be near-duplicates."""
    max_size_ratio: float = Field(default=1.5, ge=1)
    """Near-duplicates have inputs of the same ranks, with every size within this ratio of the other's."""
    kernelbench: Path | None = None
    """A checkout of KernelBench, or the folder with its levels; None compares with nothing."""
    max_similarity: float = Field(default=0.9, gt=0, le=1)
    """Largest similarity of class Model to a KernelBench problem's (paper: 0.9)."""

    @model_validator(mode="after")
    def _limits_in_order(self) -> FilterConfig:
        if self.min_ms >= self.max_ms:
            raise ValueError(f"min_ms {self.min_ms:g} has to lie below max_ms {self.max_ms:g}")
        return self
