"""The reference worker as the supervisor sees it: inputs, answers and weights, and where they lie.

oracle ──draws──► supervisor ──same bytes──► arena of the oracle, arena of the candidate
"""

from __future__ import annotations

import secrets
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from sandbox.judge.arena import Arena, read_memory, span_bytes
from sandbox.judge.compare import Expected
from sandbox.judge.layout import SCRATCH_BYTES, Layout
from sandbox.judge.values import ITEMSIZE
from sandbox.judge.worker import Worker, WorkerDiedError, WorkerError, WorkerReplyError, WorkerTimeoutError
from sandbox.tasks import TaskError
from sandbox.types import DeviceError, Task

ORACLE_TIMEOUT_S = 120.0
_OUR_TROUBLE = (
    "No working C++ compiler",
    "No space left on device",
    "Cannot allocate memory",
    "CUDA error",
    "CUDA driver",
    "CUDA out of memory",
    "cuDNN error",
    "CUBLAS_STATUS",
    "NVML",
)
"""Words of errors in the reference's process that say nothing about the task."""


Draw = tuple[int, list[dict[str, Any]]]
"""Key of inputs in the oracle, and their layouts; on a CPU also where they lie there."""


def new_seed() -> int:
    """Seeds come from the operating system and are told to nobody but the oracle."""
    return secrets.randbits(62)


@dataclass(slots=True, kw_only=True)
class Answer:
    """What the reference says to one draw."""

    key: int
    node: dict[str, Any]
    types: list[tuple[str, tuple[int, ...]]]
    """dtype and shape of each output."""
    spans: list[int]
    """Bytes that each output lies in: fewer than its elements have where the reference expanded it."""
    fetch: Callable[[], list[Expected]]
    aliases: list[bool]
    mutates: bool
    meets_tolerance: bool
    finite: bool
    _outputs: list[Expected] | None = None

    @property
    def outputs(self) -> list[Expected]:
        """The values; where they lie on a GPU they are only fetched when they are asked for."""
        if self._outputs is None:
            self._outputs = self.fetch()
        return self._outputs


class OracleSide:
    """The reference worker: draws, answers and weights. Its failures are the task's (TaskError) or ours."""

    def __init__(self, worker: Worker, task: Task, device: str = "cpu", *, has_room: bool = False) -> None:
        """`has_room`: the device's memory was free when the worker began, so a lack of it is the task's own."""
        self._has_room = has_room
        self.worker = worker
        self.task = task
        self.device = device
        self.facts: dict[str, Any] = {}
        self.layout: Layout
        self.mixes: dict[int, list[list[list[int]]]] = {}
        """On a GPU, what the slots outside of the arena are made of."""
        self._next_key = 0
        self._answers: dict[int, Answer] = {}
        self._asked: list[tuple[int, str]] = []
        """Keys and protocols of answers that are on their way."""

    def begin_build(self) -> None:
        """Sends the reference on its way; nothing else may be asked before `finish_build`."""
        self.send({"op": "build", "code": self.task.code, "seed": new_seed() % (1 << 31)})

    def finish_build(self) -> None:
        """`facts` then holds the reference's init inputs and the shapes of inputs and weights."""
        self.facts = self.receive()
        for leaf in self.facts["leaves"] + self.facts["weights"]:
            if leaf["dtype"] not in ITEMSIZE:
                raise TaskError(
                    f"task {self.task.task_id}: tensors of type {leaf['dtype']} cannot be judged; "
                    f"allowed: {', '.join(ITEMSIZE)}"
                )
        self.layout = Layout.plan(self.facts["leaves"], self.facts["weights"], self.device)
        self.map(Arena.create(self.layout.size))

    def map(self, arena: Arena) -> None:
        try:
            self.worker.map(
                arena,
                inputs=self.facts["inputs"],
                leaves=self.facts["leaves"],
                slots=self.layout.slots,
                pinned=self.layout.scratch,
                deadline=time.monotonic() + ORACLE_TIMEOUT_S,
            )
        except WorkerError as error:
            raise DeviceError(f"the reference's process failed: {error}") from error

    def ask(self, message: dict[str, Any], *, limit_s: float = ORACLE_TIMEOUT_S) -> dict[str, Any]:
        self._read_asked()
        self.send(message)
        return self.receive(limit_s)

    def send(self, message: dict[str, Any]) -> None:
        try:
            self.worker.send(message)
        except WorkerError as error:
            raise DeviceError(f"task {self.task.task_id}: the reference's process failed: {error}") from error

    def receive(self, limit_s: float = ORACLE_TIMEOUT_S) -> dict[str, Any]:
        try:
            return self.worker.receive(deadline=time.monotonic() + limit_s)
        except WorkerReplyError as error:
            if self._has_room and "out of memory" in error.message:
                raise TaskError(
                    f"task {self.task.task_id}: the reference needs more memory than the device has: {error.message}. "
                    "Make it smaller or leave it out"
                ) from error
            if any(word in error.message for word in _OUR_TROUBLE):
                raise DeviceError(f"task {self.task.task_id}: {error}") from error
            raise TaskError(
                f"task {self.task.task_id}: the reference does not run: {error}\n{error.traceback}\n"
                "Fix the task or leave it out; `jaxagent tasks check` lists such tasks"
            ) from error
        except (WorkerDiedError, WorkerTimeoutError) as error:
            raise DeviceError(f"task {self.task.task_id}: the reference's process failed: {error}") from error

    def draw(self, kind: str = "natural", base: int | None = None) -> Draw:
        """New inputs."""
        self._next_key += 1
        message = {"op": "draw", "key": self._next_key, "kind": kind, "seed": new_seed()}
        leaves = self.ask(message | ({} if base is None else {"base": base}))["leaves"]
        now, before = (
            [(leaf["dtype"], leaf["shape"], leaf["stride"]) for leaf in draw] for draw in (leaves, self.layout.leaves)
        )
        if now != before:
            raise TaskError(
                f"task {self.task.task_id}: get_inputs() returns other shapes or types in every call "
                f"({now} after {before}); a task needs fixed ones"
            )
        return self._next_key, leaves

    def adopt(self, slot: int) -> int:
        """Key of a draw that holds the contents of a slot."""
        self._next_key += 1
        self.ask({"op": "adopt", "slot": slot, "mix": self.mixes.get(slot), "key": self._next_key})
        return self._next_key

    def batch(self, model: str, slots: list[int], *, observe: bool) -> dict[str, Any]:
        """The message that readies a batch over slots, in this process or in the candidate's."""
        mixes = [self.mixes.get(slot) for slot in slots]
        return {"op": "prepare", "model": model, "slots": slots, "mixes": mixes, "observe": observe}

    def footprint(self, key: int) -> tuple[int, float | None]:
        """Bytes that any correct answer to a draw moves, and the rate of a copy of that size (None: no floor)."""
        seed = new_seed() % (1 << 31)
        reply = self.ask({"op": "footprint", "key": key, "inputs": self.facts["inputs"], "seed": seed})
        return reply["bytes"], reply["rate"]

    def redraw_weights(self, *, perturb: bool) -> list[dict[str, Any]]:
        """Where the new weights lie in the oracle's memory; earlier answers no longer hold."""
        self._read_asked()
        self._answers.clear()
        return self.ask({"op": "weights", "perturb": perturb, "seed": new_seed()})["weights"]

    def forget(self, keys: list[int]) -> None:
        self._read_asked()
        for key in keys:
            self._answers.pop(key, None)
        if keys:
            self.ask({"op": "forget", "keys": keys})

    def fill(self, slot: int, draw: Draw) -> None:
        """Copies a draw into a slot of the oracle's arena."""
        key, leaves = draw
        if self.device == "cuda":
            self.ask({"op": "place", "key": key, "slot": slot})
            return
        assert self.worker.arena is not None
        for offset, leaf in zip(self.layout.slots[slot], leaves, strict=True):
            num_bytes = span_bytes(leaf, ITEMSIZE[leaf["dtype"]])
            read_memory(self.worker.pid, leaf["address"], self.worker.arena.memory, offset, num_bytes)

    def answer(self, key: int, protocol: str) -> Answer:
        """The reference's outputs for a draw, read out of its memory; asked for once while the weights stay."""
        self.ask_ahead(key, protocol)
        while key not in self._answers:
            self._read_one()
        return self._answers[key]

    def _read_one(self) -> None:
        key, protocol = self._asked.pop(0)
        self._answers[key] = self._read_answer(protocol, key)

    def _read_asked(self) -> None:
        while self._asked:
            self._read_one()

    def ask_ahead(self, key: int, protocol: str) -> None:
        """Lets the oracle compute an answer while the supervisor does something else; what is asked next waits for
        it."""
        if key not in self._answers and (key, protocol) not in self._asked:
            self.send({"op": "answer", "key": key, "exact": protocol == "hardened", "inputs": self.facts["inputs"]})
            self._asked.append((key, protocol))

    def agrees(
        self, answer: Answer, index: int, leaf: dict[str, Any], data: Callable[[Any, int], None]
    ) -> float | None:
        """Largest error of an output that is all finite and within the hardened tolerance of the answer; None where it
        is not, or where that has to be looked at here. On a GPU only; nothing of the answer leaves it.

        `leaf`: layout of the output. `data(memory, offset)` writes it there.
        """
        num_bytes = span_bytes(leaf, ITEMSIZE[leaf["dtype"]])
        if self.device == "cpu" or not answer.meets_tolerance or not 0 < num_bytes <= SCRATCH_BYTES:
            return None
        assert self.worker.arena is not None
        data(self.worker.arena.memory, self.layout.scratch)
        where = {"offset": self.layout.scratch, "leaf": {name: leaf[name] for name in ("dtype", "shape", "stride")}}
        return self.ask({"op": "compare", "key": answer.key, "output": index} | where)["largest"]

    def _read_answer(self, protocol: str, key: int) -> Answer:
        reply = self.receive()
        for index, leaf in enumerate(reply["leaves"]):
            if leaf["dtype"] not in ITEMSIZE:
                raise TaskError(
                    f"task {self.task.task_id}: output {index} has type {leaf['dtype']}, "
                    f"which cannot be judged; allowed: {', '.join(ITEMSIZE)}"
                )
        needs_eager = protocol == "paper" or not reply["meets_tolerance"]

        def fetch() -> list[Expected]:
            return self._expected(self.ask({"op": "fetch", "key": key}), needs_eager)

        return Answer(
            key=key,
            node=reply["node"],
            types=[(leaf["dtype"], tuple(leaf["shape"])) for leaf in reply["leaves"]],
            spans=[span_bytes(leaf, ITEMSIZE[leaf["dtype"]]) for leaf in reply["leaves"]],
            fetch=fetch,
            aliases=reply["aliases"],
            mutates=reply["mutates"],
            meets_tolerance=reply["meets_tolerance"],
            finite=reply["finite"],
            _outputs=self._expected(reply, needs_eager) if self.device == "cpu" else None,
        )

    def _expected(self, reply: dict[str, Any], needs_eager: bool) -> list[Expected]:
        """Reads an answer's tensors out of the oracle's memory."""
        outputs = []
        for index, (leaf, exact) in enumerate(zip(reply["leaves"], reply["exact"], strict=True)):
            unstable = reply["unstable"].get(str(index))
            outputs.append(
                Expected(
                    dtype=leaf["dtype"],
                    eager=self.worker.read_array(leaf) if needs_eager or exact is None else None,
                    exact=self.worker.read_array(exact) if exact is not None else None,
                    unstable=self.worker.read_array(unstable) if unstable is not None else None,
                )
            )
        return outputs
