"""Records that cross a process in the sandbox, its errors, and the contract of an agent's shell."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, Protocol

SCHEMA_VERSION = 1


class Outcome(StrEnum):
    """What became of a candidate. `correct` is the only accepted one."""

    REFUSED = "refused"
    COMPILE_ERROR = "compile_error"
    RUNTIME_ERROR = "runtime_error"
    TIMEOUT = "timeout"
    WRONG = "wrong"
    CORRECT = "correct"


class SandboxUnavailableError(RuntimeError):
    """The sandbox failed, not the candidate: retry elsewhere, count it, never score it."""


class DeviceError(RuntimeError):
    """The device or its worker failed, not the candidate: restart it and retry, never score it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Task:
    """One problem in KernelBench form: `code` defines Model, get_inputs() and get_init_inputs()."""

    task_id: str
    code: str
    source: str = "file"
    """Where it came from, for example `torch#2`, `transformers`, `kernelbench/level1`, `synthetic`."""
    ops: list[str] = field(default_factory=list)
    split: str = "train"


@dataclass(frozen=True, slots=True, kw_only=True)
class Candidate:
    """The files that are judged: model_new.py and kernels/*; paths are relative and use `/`."""

    files: dict[str, str]
    omitted: dict[str, str] = field(default_factory=dict)
    """Files that count as absent, and why: links, binary or oversized ones, names that no skill uses."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Artifact:
    """A compiled candidate, loadable on another machine of the same `arch`."""

    sha256: str
    arch: str
    """`x86_64-native` for g++ -march=native, `sm_90` for nvcc."""
    shared_object: bytes = field(repr=False)
    log: str = ""
    interface: str = ""
    """JSON of the kernels' C prototypes, from which bindings.py makes the module; "" where the object is one."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CompileResult:
    """Artifact, or the first compiler error trimmed to what an agent can act on."""

    artifact: Artifact | None
    message: str
    seconds: float
    cached: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Judgement:
    """The verdict on one candidate. Times are medians in milliseconds; None means not measured.

    `reward` is Eq. 1 of the CUDA Agent paper: -1, 1, 2 or 3; None only where a correct candidate was not timed
    (an agent's `verify`).
    """

    outcome: Outcome
    reward: float | None
    message: str
    candidate_ms: float | None = None
    eager_ms: float | None = None
    compile_ms: float | None = None
    details: dict[str, Any] = field(default_factory=dict)
    """JSON values only: spreads, largest error, phases and their seconds."""

    @property
    def accepted(self) -> bool:
        return self.outcome is Outcome.CORRECT

    def to_json(self) -> dict[str, Any]:
        return dataclasses.asdict(self) | {"outcome": str(self.outcome), "accepted": self.accepted}

    @classmethod
    def from_json(cls, record: dict[str, Any]) -> Judgement:
        known: dict[str, Any] = {name: value for name, value in record.items() if name != "accepted"}
        known["outcome"] = Outcome(record["outcome"])
        return cls(**known)


@dataclass(frozen=True, slots=True, kw_only=True)
class Sanitized:
    """What compute-sanitizer said; `clean` is False also where it could not be run."""

    clean: bool
    text: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ExecResult:
    """What one shell command did. `output` is stdout and stderr interleaved, cut at the backend's limit."""

    exit_code: int | None
    """None when the command ran past its time limit and was killed."""
    output: str
    truncated: bool = False
    seconds: float = 0.0


class Sandbox(Protocol):
    """Where an agent's shell runs. Every backend passes tests/sandbox/conformance.py.

    Paths are relative to the workdir; one that leaves it (also through a link) raises PermissionError, a missing
    file FileNotFoundError. SandboxUnavailableError is the provider's fault and never shown to the model.
    """

    async def exec(self, command: str, *, timeout_s: float, session: str = "main") -> ExecResult:
        """Runs `command` in bash. Working directory and variables persist within a `session`."""
        ...

    async def read_file(self, path: str) -> str: ...

    async def write_file(self, path: str, text: str) -> None: ...

    async def close(self) -> None:
        """Ends every process of the sandbox and frees it; safe to call twice."""
        ...


class Judge(Protocol):
    """Scores a candidate; the same call serves agents, training and evaluation."""

    async def judge(self, task: Task, candidate: Candidate, *, skill: str, timed: bool = True) -> Judgement:
        """With `timed` False only correctness is checked (an agent's `verify`)."""
        ...

    async def sanitize(self, task: Task, candidate: Candidate, *, skill: str) -> Sanitized:
        """Runs a candidate once under NVIDIA's compute-sanitizer; tells where it strays, and scores nothing."""
        ...
