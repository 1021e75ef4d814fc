"""The candidate's process: loads model_new.py and its kernels and calls ModelNew. Trusted with nothing.

Whatever this process says is only used against the candidate (a refusal, an error) or checked elsewhere: the
supervisor reads output bytes out of its memory while it is stopped, and owns the clock and the comparison.
"""

from __future__ import annotations

import contextlib
import gc
import importlib.util
import os
import sys
import traceback
from typing import Any

import torch

from sandbox import seccomp
from sandbox.bindings import load_module
from sandbox.judge.channel import Channel
from sandbox.judge.host import replace_code, settle_allocator
from sandbox.judge.lookups import guarded_builtins
from sandbox.judge.observe import BlockedFunctional, OperatorRecord, TamperRecord
from sandbox.judge.oplock import ForeignOperatorError, OperatorLock
from sandbox.judge.placement import Placement, make_placement
from sandbox.judge.serving import ModelServer, answer_until_closed
from sandbox.judge.values import unflatten, unpack_tensors

_load_state_dict = torch.nn.Module.load_state_dict
_MAX_TRACEBACK = 2000


class CandidateError(Exception):
    """The candidate does not meet the contract; the text is for its author."""


class CandidateServer(ModelServer):
    """One candidate."""

    def __init__(self, channel: Channel, placement: Placement) -> None:
        super().__init__(channel, placement)
        self._module: Any = None
        self._instance: torch.nn.Module | None = None
        self._parameters: list[torch.Tensor] = []
        self._protocol = "hardened"
        self._listener: int | None = None
        self._traps = -1
        self._operators = OperatorRecord()
        self._tampering = TamperRecord()
        # what a CUDA context needs is not known well enough to filter it, and a GPU's batches run torch's own fills
        self._lock = OperatorLock() if placement.kind == "cpu" else None

    def do_start(self, message: dict[str, Any]) -> dict[str, Any]:
        """As every worker, but on a CPU a file of traps comes along. `gate`: the supervisor takes the descriptor that
        is told, and answers for code from then on."""
        for traps in self._channel.take_fds():
            self._traps = traps
            if message["gate"]:
                self._listener = seccomp.ask_before_executable(traps)
        return super().do_start(message) | {"listener": self._listener}

    def do_load(self, message: dict[str, Any]) -> dict[str, Any]:
        """Loads the extension module, then model_new.py."""
        self._protocol = message["protocol"]
        if self._listener is not None:
            os.close(self._listener)  # the supervisor has it; from here on it is nobody's business in this process
        if message["shared_object"]:
            sys.modules[message["extension_module"]] = load_module(
                message["extension_module"], message["shared_object"], message["interface"]
            )
        path = message["model_new"]
        self._tampering.start(candidate_files=[path])
        spec = importlib.util.spec_from_file_location("model_new", path)
        assert spec is not None and spec.loader is not None
        self._module = importlib.util.module_from_spec(spec)
        sys.modules["model_new"] = self._module
        if self._protocol == "hardened":
            self._module.__dict__["__builtins__"] = guarded_builtins(self._tampering.add)
        spec.loader.exec_module(self._module)
        return self.observations()

    def do_construct(self, message: dict[str, Any]) -> dict[str, Any]:
        """Builds ModelNew with the reference's arguments and copies the reference's weights into it."""
        factory = getattr(self._module, "ModelNew", None)
        if factory is None:
            raise CandidateError("model_new.py defines no class ModelNew")
        tensors = [self.placement.copy_in(tensor) for tensor in unpack_tensors(message["init_tensors"])]
        torch.manual_seed(message["seed"])
        with self.placement.creation():
            instance = factory(*unflatten(message["init"], tensors))
        if not isinstance(instance, torch.nn.Module):
            raise CandidateError(f"ModelNew must be a torch.nn.Module, not {type(instance).__name__}")
        instance.eval().to(self.placement.kind)
        weights = self._weights(message["weights"])
        _check_state(torch.nn.Module.state_dict(instance), weights)
        with torch.no_grad():
            _load_state_dict(instance, {name: weight.clone() for name, weight in weights.items()}, strict=True)
        state = torch.nn.Module.state_dict(instance)
        self._parameters = [state[name] for name in weights]
        self._instance = instance
        self.models["candidate"] = instance
        if self._lock is not None and self._protocol == "hardened":
            self._lock.close()
        gc.collect()
        gc.freeze()
        return self.observations()

    def do_replace_code(self, message: dict[str, Any]) -> dict[str, Any]:
        """Puts traps, a file of `num_bytes`, in the place of ranges of code."""
        replace_code(message["ranges"], self._traps, message["num_bytes"])
        return {}

    def do_weights(self, message: dict[str, Any]) -> dict[str, Any]:
        """New weights into the same tensors, as an optimizer would write them."""
        weights = self._weights(message["weights"])
        with torch.no_grad():
            for parameter, weight in zip(self._parameters, weights.values(), strict=True):
                parameter.copy_(weight)
        return {}

    def observer(self, observe: bool) -> contextlib.AbstractContextManager[Any]:
        if not observe:
            return contextlib.nullcontext()
        return self._operators if self._protocol == "hardened" else BlockedFunctional()

    def observations(self) -> dict[str, Any]:
        tampering = self._tampering.events() + self.placement.tampering()
        return {"operators": self._operators.counts(), "tampering": tampering}

    def describe_error(self, error: BaseException) -> dict[str, Any]:
        return _describe_error(error) | self.observations()

    def _weights(self, leaves: list[dict[str, Any]]) -> dict[str, torch.Tensor]:
        return {leaf["name"]: self.tensor_at(leaf["offset"], leaf) for leaf in leaves}


def serve(channel: Channel, device: str) -> None:
    """Answers until the supervisor hangs up. Every failure of the candidate, its exits too, goes back as an `error`."""
    settle_allocator()
    server = CandidateServer(channel, make_placement(device))
    if device == "cpu":
        seccomp.restrict("candidate")
    answer_until_closed(channel, server, server.describe_error, caught=BaseException)


def _check_state(state: dict[str, torch.Tensor], weights: dict[str, torch.Tensor]) -> None:
    missing = [name for name in weights if name not in state]
    extra = [name for name in state if name not in weights]
    if missing or extra:
        raise CandidateError(
            f"ModelNew's state_dict must have the keys of Model's: missing {missing}, unexpected "
            f"{extra}. Register the same parameters and buffers under the same names"
        )
    for name, weight in weights.items():
        if state[name].shape != weight.shape or state[name].dtype != weight.dtype:
            raise CandidateError(
                f"ModelNew's {name} is {state[name].dtype} {tuple(state[name].shape)}, Model's is {weight.dtype} "
                f"{tuple(weight.shape)}; shapes and types must agree"
            )


def _describe_error(error: BaseException) -> dict[str, Any]:
    if isinstance(error, CandidateError):
        return {"type": "contract", "message": str(error), "traceback": ""}
    frames = [frame for frame in traceback.extract_tb(error.__traceback__) if "sandbox/judge" not in frame.filename]
    if isinstance(error, ForeignOperatorError):  # what torch does on the way to an operator helps nobody
        frames = [frame for frame in frames if frame.filename.endswith("model_new.py")]
    lines = "".join(traceback.format_list(frames[-4:]))
    return {"type": type(error).__name__, "message": str(error)[:_MAX_TRACEBACK], "traceback": lines[-_MAX_TRACEBACK:]}
