"""The process that runs a task to see what it does. Facts go back as JSON; rules elsewhere judge them.

build    import the code, make the model and two draws of inputs
examine  the forward pass on other inputs, repeated, on poisoned memory, with other weights
warm     calls of torch eager until a time is over
time     torch eager, after that
compile  torch.compile, and how far its answer lies from eager's
"""

from __future__ import annotations

import gc
import os
import statistics
import time
import traceback
import types
from collections.abc import Callable
from typing import Any

import torch

from sandbox.judge.channel import Channel
from sandbox.judge.host import settle_allocator
from sandbox.judge.inputs import perturb_parameters
from sandbox.judge.placement import Placement, layout_of, make_placement
from sandbox.judge.reference import run_code
from sandbox.judge.serving import is_tensor
from sandbox.judge.values import flatten, unflatten
from sandbox.taskcheck.observe import DispatchRecord, OperatorCalls, OutsideRecord
from sandbox.taskcheck.signals import (
    differs,
    distance,
    finite_share,
    foreign,
    largest,
    sample_of,
    typed_shape,
    unchanged_share,
)

_SEEDS = (11, 23, 37)
_MIN_ROUNDS, _MAX_ROUNDS = 7, 31


class TaskProbe:
    """One task in one process. A failure of the task is a reply with `failure`, never an exception."""

    def __init__(self, placement: Placement) -> None:
        self._placement = placement
        self._outside = OutsideRecord()
        self._module = types.ModuleType("task_model")
        self._model: torch.nn.Module = torch.nn.Identity()
        self._inputs: Any = None
        """What is timed."""

    def handle(self, message: dict[str, Any]) -> dict[str, Any]:
        operations: dict[str, Callable[[dict[str, Any]], dict[str, Any]]] = {
            "build": self._build,
            "examine": self._examine,
            "warm": self._warm,
            "time": self._time,
            "compile": self._compile,
        }
        try:
            with self._outside.watching(), torch.no_grad():
                facts = operations[message["op"]](message)
        except BaseException as error:  # noqa: B036 - a task may raise SystemExit, and that is its fault
            facts = {"failure": _describe(error)}
        touched = [] if message["op"] == "compile" else self._outside.touched  # there the compiler writes its own files
        return facts | {"printed": self._outside.printed, "touched": touched, "slept": self._outside.slept}

    def _build(self, message: dict[str, Any]) -> dict[str, Any]:
        run_code(message["code"], self._module)
        self._model = self._make_model(seed=1)
        first, second = self._draw(_SEEDS[0]), self._draw(_SEEDS[1])
        state = self._model.state_dict()
        return {
            "inputs": [layout_of(tensor) for tensor in first[1]],
            "inputs_fixed": [typed_shape(tensor) for tensor in first[1]]
            == [typed_shape(tensor) for tensor in second[1]],
            "num_parameters": sum(parameter.numel() for parameter in self._model.parameters()),
            "state_bytes": sum(tensor.numel() * tensor.element_size() for tensor in state.values()),
        }

    def _examine(self, message: dict[str, Any]) -> dict[str, Any]:
        """`slow_s`: a forward pass that takes longer than this twice ends the examination."""
        node, drawn = self._draw(_SEEDS[0])
        before = [tensor.clone() for tensor in drawn]
        state = {name: tensor.clone() for name, tensor in self._model.state_dict().items()}
        operators, dispatched = OperatorCalls(), DispatchRecord()
        with operators.watching(), dispatched:
            output = self._run(node, drawn, seed=5)
        tensors: list[Any] = []
        output_node = flatten(output, is_tensor, tensors)
        facts: dict[str, Any] = {
            "foreign_output": foreign(output_node, tensors),
            "outputs": [layout_of(tensor) for tensor in tensors],
            "operators": operators.names,
            "aten": dict(dispatched.counts.most_common(60)),
            "random_operators": dispatched.random,
            "mutated_inputs": [i for i, (old, new) in enumerate(zip(before, drawn, strict=True)) if differs(old, new)],
        }
        if facts["foreign_output"] is not None:
            return facts
        began = time.monotonic()
        again = self._samples(node, before, seed=6)
        facts["forward_s"] = time.monotonic() - began
        facts["changed_state"] = [
            name for name, tensor in self._model.state_dict().items() if differs(state[name], tensor)
        ]
        if facts["forward_s"] > message["slow_s"]:
            return facts
        first = [sample_of(tensor) for tensor in tensors]
        return facts | self._compare(node, before, state, first, again)

    def _compare(
        self, node: Any, inputs: list[Any], state: dict[str, Any], first: list[Any], again: list[Any]
    ) -> dict[str, Any]:
        """Outputs across inputs, runs, memory, instances of the model, and weights."""
        others = [self._draw(seed) for seed in _SEEDS[1:]]
        draws = [first, *(self._samples(*draw, seed=7 + index) for index, draw in enumerate(others))]
        deviations = {
            "repeated": largest(first, again),
            "after other work": largest(first, self._samples(node, inputs, seed=17)),
            "on poisoned memory": largest(first, self._poisoned(node, inputs)),
            "another instance with the same weights": largest(first, self._rebuilt(node, inputs, state)),
        }
        return {
            "deviations": deviations,
            "inputs_vary": any(differs(a, b) for draw in others for a, b in zip(inputs, draw[1], strict=True)),
            "signals": [
                max(distance(draws[i][k], draws[j][k]) for i, j in ((0, 1), (0, 2), (1, 2))) for k in range(len(first))
            ],
            "unchanged_shares": [unchanged_share([draw[k] for draw in draws]) for k in range(len(first))],
            "finite_shares": [finite_share(sample) for sample in first],
            "weights_signal": self._weights_signal(node, inputs, state, first),
        }

    def _poisoned(self, node: Any, inputs: list[Any]) -> list[Any]:
        """Fresh memory holds NaN: what is read before it was written shows."""
        torch.use_deterministic_algorithms(True, warn_only=True)
        torch.utils.deterministic.fill_uninitialized_memory = True  # pyright: ignore[reportAttributeAccessIssue]
        try:
            self._placement.before_batch(observe=True)
            return self._samples(node, inputs, seed=18)
        finally:
            self._placement.before_batch(observe=False)
            torch.use_deterministic_algorithms(False)

    def _rebuilt(self, node: Any, inputs: list[Any], state: dict[str, Any]) -> list[Any]:
        """A model made anew, with other random numbers, that is given the weights, as a candidate is."""
        mine, self._model = self._model, self._make_model(seed=2)
        try:
            self._model.load_state_dict(state)
            return self._samples(node, inputs, seed=19)
        finally:
            self._model = mine

    def _weights_signal(self, node: Any, inputs: list[Any], state: dict[str, Any], first: list[Any]) -> float | None:
        """The effect of other weights on the output; None for a model without any."""
        if not any(parameter.numel() for parameter in self._model.parameters()):
            return None
        perturb_parameters(self._model, state, torch.Generator().manual_seed(3))
        changed = self._samples(node, inputs, seed=20)
        self._model.load_state_dict(state)
        return largest(first, changed)

    def _warm(self, message: dict[str, Any]) -> dict[str, Any]:
        node, drawn = self._draw(_SEEDS[0])
        gc.collect()
        gc.freeze()
        self._inputs = unflatten(node, [self._placement.copy_in(tensor) for tensor in drawn])
        until = time.monotonic() + message["warmup_s"]
        while True:
            self._timed_call()
            if time.monotonic() >= until:
                return {}

    def _time(self, message: dict[str, Any]) -> dict[str, Any]:
        """Single calls; `budget_s` is spent unless _MAX_ROUNDS come first."""
        until = time.monotonic() + message["budget_s"]
        values: list[float] = []
        while len(values) < _MIN_ROUNDS or (len(values) < _MAX_ROUNDS and time.monotonic() < until):
            values.append(self._timed_call())
            if time.monotonic() > until + message["budget_s"] and len(values) >= 3:
                break
        quartiles = statistics.quantiles(values, n=4)
        return {"median_ms": quartiles[1], "p25_ms": quartiles[0], "p75_ms": quartiles[2], "rounds": len(values)}

    def _timed_call(self) -> float:
        _synchronize(self._placement)
        began = time.perf_counter()
        self._model(*self._inputs)
        _synchronize(self._placement)
        return 1e3 * (time.perf_counter() - began)

    def _compile(self, message: dict[str, Any]) -> dict[str, Any]:
        os.environ["TORCHINDUCTOR_CACHE_DIR"] = message["cache_dir"]
        node, drawn = self._draw(_SEEDS[0])
        eager = self._samples(node, drawn, seed=5)
        mine, began = self._model, time.monotonic()
        self._model = torch.compile(self._model)  # type: ignore[assignment]
        compiled = self._samples(node, drawn, seed=5)
        seconds = time.monotonic() - began
        self._model = mine
        return {"compile_s": seconds, "deviation": largest(eager, compiled)}

    def _make_model(self, *, seed: int) -> torch.nn.Module:
        torch.manual_seed(seed)
        init = self._module.__dict__["get_init_inputs"]()
        if not isinstance(init, (list, tuple)):
            raise TypeError(f"get_init_inputs() returned a {type(init).__name__}; it has to return a list")
        with self._placement.creation():
            model = self._module.__dict__["Model"](*init)
        if not isinstance(model, torch.nn.Module):
            raise TypeError(f"Model(...) made a {type(model).__name__}; it has to be a torch.nn.Module")
        return model.eval().to(self._placement.kind)

    def _draw(self, seed: int) -> tuple[dict[str, Any], list[Any]]:
        torch.manual_seed(seed)
        with self._placement.creation():
            drawn = self._module.__dict__["get_inputs"]()
        if not isinstance(drawn, (list, tuple)):
            raise TypeError(f"get_inputs() returned a {type(drawn).__name__}; it has to return a list")
        tensors: list[Any] = []
        node = flatten(list(drawn), is_tensor, tensors)
        return node, [self._placement.copy_out(tensor) for tensor in tensors]

    def _run(self, node: dict[str, Any], tensors: list[Any], *, seed: int) -> Any:
        torch.manual_seed(seed)
        return self._model(*unflatten(node, tensors if self._placement.kind == "cpu" else self._placed(tensors)))

    def _placed(self, tensors: list[Any]) -> list[Any]:
        return [self._placement.copy_in(tensor) for tensor in tensors]

    def _samples(self, node: dict[str, Any], tensors: list[Any], *, seed: int) -> list[Any]:
        """Samples of the outputs on copies of the inputs."""
        outputs: list[Any] = []
        flatten(self._run(node, [tensor.clone() for tensor in tensors], seed=seed), is_tensor, outputs)
        return [sample_of(tensor) for tensor in outputs]


def serve(channel: Channel, device: str) -> None:
    """Answers until the supervisor hangs up."""
    from sandbox.judge.channel import ChannelClosedError

    settle_allocator()
    placement = make_placement(device)
    placement.start()
    probe = TaskProbe(placement)
    while True:
        try:
            message = channel.receive()
        except ChannelClosedError:
            return
        channel.send(probe.handle(message))


def _describe(error: BaseException) -> dict[str, str]:
    lines = "".join(traceback.format_exception(error, limit=-4))
    return {"type": type(error).__name__, "message": str(error)[:1000], "traceback": lines[-2000:]}


def _synchronize(placement: Placement) -> None:
    if placement.kind == "cuda":
        torch.cuda.synchronize()
