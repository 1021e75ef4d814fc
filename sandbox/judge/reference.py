"""A task's Model where models run: its weights and inputs, and what it answers in float32 and in float64."""

from __future__ import annotations

import contextlib
import copy
import sys
import types
from collections.abc import Iterator
from typing import Any

import torch

from sandbox.judge.agreement import shares_storage
from sandbox.judge.inputs import perturb_parameters
from sandbox.judge.placement import Placement
from sandbox.judge.serving import is_tensor
from sandbox.judge.values import flatten, unflatten

_JITTER = 1e-6


def run_code(code: str, module: types.ModuleType) -> None:
    """Runs a task's code as the module `task_model`."""
    sys.modules["task_model"] = module  # dataclasses and pickle look classes up there
    exec(compile(code, "model.py", "exec"), module.__dict__)


def seeded(seed: int) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


class Reference:
    """One task's. Inputs come as the tensors that Placement.keep has kept, and `node`, which says how they nest."""

    def __init__(self, placement: Placement, code: str, seed: int) -> None:
        """Raises what the task's code raises."""
        self._placement = placement
        self._task: Any = types.ModuleType("task_model")
        run_code(code, self._task)
        torch.manual_seed(seed)
        self.init_tensors: list[Any] = []
        self.init = flatten(self._task.get_init_inputs(), is_tensor, self.init_tensors)
        """The node of Model's arguments, and their tensors."""
        arguments = unflatten(self.init, [placement.copy_in(tensor) for tensor in self.init_tensors])
        with placement.creation():
            self.model: torch.nn.Module = self._task.Model(*arguments).eval().to(placement.kind)
        self.built_state = {name: tensor.clone() for name, tensor in self.state().items()}
        """What `state` was at first; weights are redrawn around it."""
        self._double: torch.nn.Module | None = None

    def state(self) -> dict[str, torch.Tensor]:
        """Parameters and buffers as the host sees them; on a CPU these are the model's own."""
        return {name: self._placement.copy_out(tensor) for name, tensor in self.model.state_dict().items()}

    def perturb(self, seed: int) -> None:
        """Redraws the weights in place."""
        perturb_parameters(self.model, self.built_state, seeded(seed))

    def drop_double(self) -> None:
        """Of weights that are no more, or before a clock starts; `run_double` makes it again."""
        self._double = None

    def draw(self, seed: int) -> tuple[dict[str, Any], list[Any]]:
        """Node and tensors of get_inputs(), drawn where models run."""
        torch.manual_seed(seed)
        with self._placement.creation():
            drawn = list(self._task.get_inputs())
        tensors: list[Any] = []
        node = flatten(drawn, is_tensor, tensors)
        return node, [self._placement.keep(tensor) for tensor in tensors]

    def run(self, tensors: list[Any], node: dict[str, Any]) -> Any:
        """What eager returns for tensors that lie where models run."""
        return self._run(self.model, tensors, node)

    def outputs_of(self, inputs: list[Any], node: dict[str, Any]) -> list[Any]:
        """Eager's outputs that are no views of inputs."""
        placed = [self._placement.copy_in(tensor) for tensor in inputs]
        tensors: list[Any] = []
        flatten(self.run(placed, node), is_tensor, tensors)
        return [tensor for tensor in tensors if not shares_storage(tensor, placed, self._placement)]

    def run_double(self, tensors: list[Any], node: dict[str, Any]) -> Any:
        """The reference in float64, or None where it cannot run so."""
        try:
            if self._double is None:
                self._double = copy.deepcopy(self.model).double()
            placed = [self._placement.copy_in(tensor) for tensor in tensors]
            wide = [tensor.double() if tensor.is_floating_point() else tensor for tensor in placed]
            with _default_dtype(torch.float64):
                return self._run(self._double, wide, node)
        except (RuntimeError, TypeError, ValueError):  # the task mixes in float32 of its own: eager is the reference
            return None

    def unstable_integers(self, tensors: list[Any], node: dict[str, Any], eager: list[Any]) -> dict[int, Any]:
        """Positions of integer outputs (argmax, for example) that change when inputs move in their last digits."""
        integers = [index for index, tensor in enumerate(eager) if not tensor.is_floating_point()]
        if not integers or not any(tensor.is_floating_point() for tensor in tensors):
            return {}
        placed = [self._placement.copy_in(tensor) for tensor in tensors]
        moved = [
            tensor * (1 + _JITTER * torch.randn_like(tensor)) if tensor.is_floating_point() else tensor
            for tensor in placed
        ]
        again: list[Any] = []
        flatten(self.run(moved, node), is_tensor, again)
        return {
            index: (again[index] != eager[index]).contiguous()
            for index in integers
            if again[index].shape == eager[index].shape
        }

    def _run(self, model: torch.nn.Module, placed: list[Any], node: dict[str, Any]) -> Any:
        with torch.no_grad():
            return model(*unflatten(node, placed))


@contextlib.contextmanager
def _default_dtype(dtype: torch.dtype) -> Iterator[None]:
    before = torch.get_default_dtype()
    torch.set_default_dtype(dtype)
    try:
        yield
    finally:
        torch.set_default_dtype(before)
