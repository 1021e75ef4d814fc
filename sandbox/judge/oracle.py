"""The reference's process: runs the task's Model, never a candidate's code.

It draws inputs from secret seeds, answers them in float64 (and as eager runs them), and serves the eager and the
torch.compile model to the clock through the same ModelServer as the candidate. Draws and answers lie where models run:
on a GPU outputs come there to be compared, and an answer is only fetched when one differs.
"""

from __future__ import annotations

import gc
import traceback
from typing import Any

import torch

from sandbox.judge.agreement import (
    TOLERANCE,
    is_close,
    is_finite,
    matching_double,
    meets_tolerance,
    same_bytes,
    shares_storage,
)
from sandbox.judge.channel import Channel
from sandbox.judge.host import settle_allocator
from sandbox.judge.inputs import Transform, apply_transform, change_block, transforms_for
from sandbox.judge.placement import Placement, leaf_of, make_placement
from sandbox.judge.reference import Reference, seeded
from sandbox.judge.serving import ModelServer, answer_until_closed, is_tensor
from sandbox.judge.values import flatten, pack_tensors, unflatten

_FOOTPRINT_SAMPLES = 4


class OracleServer(ModelServer):
    """One task."""

    def __init__(self, channel: Channel, placement: Placement) -> None:
        super().__init__(channel, placement)
        self._reference: Reference
        self._weights: dict[str, torch.Tensor] = {}
        self._draws: dict[int, list[Any]] = {}
        self._answers: dict[int, list[Any]] = {}
        self._fetched: list[Any] = []
        self._transforms: dict[str, Transform] = {}
        self._mutates: bool | None = None
        self._num_threads = torch.get_num_threads()

    def do_build(self, message: dict[str, Any]) -> dict[str, Any]:
        """Runs the task's code and builds its Model. The reply holds all that a candidate needs to know."""
        self._reference = reference = Reference(self.placement, message["code"], message["seed"])
        self.models["eager"] = reference.model
        inputs, draw = reference.draw(message["seed"])
        weights = reference.built_state.items()
        self._transforms = transforms_for(draw)
        return {
            "init": reference.init,
            "init_tensors": pack_tensors(reference.init_tensors),
            "inputs": inputs,
            "leaves": [self.placement.kept_leaf(tensor) for tensor in draw],
            "weights": [leaf_of(tensor.contiguous()) | {"name": name} for name, tensor in weights],
            "transforms": list(self._transforms),
        }

    def do_weights(self, message: dict[str, Any]) -> dict[str, Any]:
        """Redraws the weights in place; the reply says where the supervisor can read them."""
        if message["perturb"]:
            self._reference.perturb(message["seed"])
        self._weights = {name: tensor.contiguous() for name, tensor in self._reference.state().items()}
        self._reference.drop_double()
        return {"weights": [leaf_of(tensor) | {"name": name} for name, tensor in self._weights.items()]}

    def do_draw(self, message: dict[str, Any]) -> dict[str, Any]:
        """Makes inputs and keeps them under `key`: natural, or made from an earlier draw `base`."""
        kind, base = message["kind"], self._draws.get(message.get("base", -1))
        _, natural = self._reference.draw(message["seed"]) if kind in ("natural", "block") else ({}, [])
        if kind == "natural":
            tensors = natural
        elif kind == "block":
            generator = seeded(message["seed"] + 1)
            tensors = [change_block(mine, other, generator) for mine, other in zip(base or [], natural, strict=True)]
        else:
            transform = self._transforms[kind]
            tensors = [apply_transform(transform, tensor) for tensor in base or []]
        self._draws[message["key"]] = tensors
        return {"leaves": [self.placement.kept_leaf(tensor) for tensor in tensors]}

    def do_place(self, message: dict[str, Any]) -> dict[str, Any]:
        """Copies a draw into a slot of the arena, where the supervisor cannot do that itself."""
        for tensor, host in zip(self._draws[message["key"]], self._host_inputs(message["slot"]), strict=True):
            self.placement.write(tensor, host)
        return {}

    def do_adopt(self, message: dict[str, Any]) -> dict[str, Any]:
        """Keeps what a slot holds as a draw, so that a timed output can be answered for later."""
        slot, mix = message["slot"], message["mix"]
        if mix is None:
            tensors = [tensor.clone() for tensor in self._host_inputs(slot)]
        else:
            self.placement.mixed(slot, self._leaves, mix)
            tensors = self.placement.contents(slot, self._leaves)
        self._draws[message["key"]] = tensors
        return {}

    def do_forget(self, message: dict[str, Any]) -> dict[str, Any]:
        for key in message["keys"]:
            self._draws.pop(key, None)
            self._answers.pop(key, None)
        return {}

    def do_answer(self, message: dict[str, Any]) -> dict[str, Any]:
        """The reference's outputs for a draw: eager's, float64's where it runs so, and which integers are unstable.

        Runs on one thread: checks go on beside busy neighbours, where threads that wait for each other lose more than
        they win, and the pool of threads stays untouched for the clock.
        """
        key, node = message["key"], message["inputs"]
        inputs = self._draws[key]
        self._use_threads(1)
        placed = [self.placement.copy_in(tensor) for tensor in inputs]
        eager = self._reference.run(placed, node)
        if self._mutates is None:
            self._mutates = any(not same_bytes(old, new) for old, new in zip(inputs, placed, strict=True))
        tensors: list[Any] = []
        output = flatten(eager, is_tensor, tensors)
        exact = matching_double(self._reference.run_double(inputs, node) if message["exact"] else None, tensors)
        unstable = self._reference.unstable_integers(inputs, node, tensors) if message["exact"] else {}
        facts = {
            "mutates": self._mutates,
            "aliases": [shares_storage(tensor, placed, self.placement) for tensor in tensors],
            "meets_tolerance": meets_tolerance(tensors, exact),
            "finite": all(is_finite(tensor) for tensor in tensors if tensor.is_floating_point()),
        }
        return facts | {"node": output} | self._kept(key, tensors, exact, unstable)

    def _kept(self, key: int, eager: list[Any], exact: list[Any], unstable: dict[int, Any]) -> dict[str, Any]:
        """Keeps an answer beside the models; its layouts, and where it lies for the supervisor if that is possible."""
        self._answers[key] = [eager, exact, unstable]
        leaf = self.placement.kept_leaf
        return {
            "leaves": [leaf(tensor) for tensor in eager],
            "exact": [leaf(tensor) if tensor is not None else None for tensor in exact],
            "unstable": {str(index): leaf(mask) for index, mask in unstable.items()},
        }

    def do_fetch(self, message: dict[str, Any]) -> dict[str, Any]:
        """Copies an answer into the host's memory, where the supervisor can read it; one at a time is kept there."""
        out = self.placement.copy_out
        eager, exact, unstable = self._answers[message["key"]]
        host_eager = [out(tensor) for tensor in eager]
        host_exact = [out(tensor) if tensor is not None else None for tensor in exact]
        host_unstable = {index: out(mask) for index, mask in unstable.items()}
        self._fetched = [host_eager, host_exact, host_unstable]
        return {
            "leaves": [leaf_of(tensor) for tensor in host_eager],
            "exact": [leaf_of(tensor) if tensor is not None else None for tensor in host_exact],
            "unstable": {str(index): leaf_of(mask) for index, mask in host_unstable.items()},
        }

    def do_compare(self, message: dict[str, Any]) -> dict[str, Any]:
        """Largest error of an output in the arena that is finite and within the tolerance everywhere, else None."""
        wide = self._answers[message["key"]][1][message["output"]]
        dtype = message["leaf"]["dtype"]
        if wide is None or dtype not in TOLERANCE:
            return {"largest": None}
        got = self.placement.copy_in(self.tensor_at(message["offset"], message["leaf"]))
        if not is_finite(wide) or not is_close(got, wide, TOLERANCE[dtype]):
            return {"largest": None}
        return {"largest": float((got - wide).abs().max())}

    def do_compile(self, message: dict[str, Any]) -> dict[str, Any]:
        """Compiles the reference with torch.compile in default mode, on one natural draw; `models["compile"]`."""
        self._use_threads(self._num_threads)
        compiled = torch.compile(self._reference.model)
        node, tensors = self._reference.draw(message["seed"])
        inputs = unflatten(node, [self.placement.copy_in(tensor) for tensor in tensors])
        with torch.no_grad():
            for _ in range(2):
                compiled(*inputs)
        self.models["compile"] = compiled
        return {}

    def do_footprint(self, message: dict[str, Any]) -> dict[str, Any]:
        """Bytes that any correct answer to a draw has to move: outputs, and inputs as far as blocks of them matter.

        A block matters if the answer changes with it. Samples of blocks are changed; where a change is lost (a mask, a
        maximum) the share comes out too small, which is on the safe side. `rate`: Placement.copy_rate for that much.
        """
        inputs, node = self._draws[message["key"]], message["inputs"]
        _, others = self._reference.draw(message["seed"])
        before = self._reference.outputs_of(inputs, node)
        total = sum(tensor.numel() * tensor.element_size() for tensor in before)
        generator = seeded(message["seed"])
        for index, tensor in enumerate(inputs):
            matters = 0
            for _ in range(_FOOTPRINT_SAMPLES):
                changed = [*inputs[:index], change_block(tensor, others[index], generator), *inputs[index + 1 :]]
                after = self._reference.outputs_of(changed, node)
                matters += any(not same_bytes(old, new) for old, new in zip(before, after, strict=True))
            total += tensor.numel() * tensor.element_size() * matters // _FOOTPRINT_SAMPLES
        return {"bytes": total, "rate": self.placement.copy_rate(total)}

    def do_start(self, message: dict[str, Any]) -> dict[str, Any]:
        facts = super().do_start(message)
        self.placement.warm_libraries()
        return facts

    def do_probe(self, message: dict[str, Any]) -> dict[str, Any]:
        """Milliseconds of a small piece of work, several times (sandbox.judge.still)."""
        return {"ms": self.placement.probe()}

    def do_settle(self, message: dict[str, Any]) -> dict[str, Any]:
        """Before the clock starts: as few leftovers of the checks as possible."""
        self._reference.drop_double()
        self._use_threads(self._num_threads)
        gc.collect()
        gc.freeze()
        return {}

    def _use_threads(self, count: int) -> None:
        if torch.get_num_threads() != count:
            torch.set_num_threads(count)


def serve(channel: Channel, device: str) -> None:
    """Answers until the supervisor hangs up. A failure is the task's or ours, never a candidate's."""
    settle_allocator()
    answer_until_closed(channel, OracleServer(channel, make_placement(device)), _describe_error)


def _describe_error(error: BaseException) -> dict[str, Any]:
    lines = "".join(traceback.format_exception(error, limit=-6))
    return {"type": type(error).__name__, "message": str(error)[:2000], "traceback": lines[-3000:]}
