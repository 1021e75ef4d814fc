"""The part that candidate and reference share: calling a model on inputs that lie in shared memory.

Both sides of a comparison run this same code, so what it costs cancels out. A call has four steps, and the
supervisor stops the process between them (see device.py):

    prepare   build tensors over the arena's slots; nothing is in them yet (on a GPU: copy the slots there)
    go        run the model on every prepared input, write the outputs' addresses into the arena's table
    describe  say what the outputs are (type, shape, strides), now that the supervisor has read their bytes
              (on a GPU: copy them out first; `collect` does so for one call of a timed batch)
    release   forget them
"""

from __future__ import annotations

import base64
import contextlib
import struct
from collections.abc import Callable
from typing import Any

import torch

from sandbox.judge.arena import TABLE_BYTES, Arena
from sandbox.judge.channel import Channel, ChannelClosedError
from sandbox.judge.placement import Placement, view_at
from sandbox.judge.values import flatten, unflatten

_MAX_POINTERS = TABLE_BYTES // 8
_data_ptr = torch.Tensor.data_ptr


class ModelServer:
    """Answers the messages of one supervisor; `models` maps a name to what `go` calls."""

    def __init__(self, channel: Channel, placement: Placement) -> None:
        self._channel = channel
        self.placement = placement
        self._arena: Arena | None = None
        self._input_node: dict[str, Any] = {}
        self._leaves: list[dict[str, Any]] = []
        self._slots: list[list[int]] = []
        self._prepared: list[list[Any]] = []
        self._model: Callable[..., Any] | None = None
        self._observer: contextlib.AbstractContextManager[Any] = contextlib.nullcontext()
        self._outputs: list[Any] = []
        self._held: list[Any] = []
        """Results that their caller still holds."""
        self.models: dict[str, Callable[..., Any]] = {}

    def handle(self, message: dict[str, Any]) -> dict[str, Any]:
        """Reply to one message; the handlers are the methods named do_*."""
        handler = getattr(self, f"do_{message['op']}", None)
        if handler is None:
            raise ValueError(f"unknown operation {message['op']!r}")
        return handler(message)

    def do_start(self, message: dict[str, Any]) -> dict[str, Any]:
        """Readies the device, before anything of a task or candidate is loaded; facts about it."""
        return self.placement.start()

    def do_map(self, message: dict[str, Any]) -> dict[str, Any]:
        """Maps the arena: `inputs` is the node of one call's arguments, `slots` the offsets of their tensors."""
        (fd,) = self._channel.take_fds()
        self._arena = Arena(fd, message["size"])
        self._input_node, self._leaves, self._slots = message["inputs"], message["leaves"], message["slots"]
        self.placement.share(self._arena.memory, message["pinned"])
        return {}

    def do_prepare(self, message: dict[str, Any]) -> dict[str, Any]:
        """Readies a batch over `slots`, or one of `blank` calls of nothing, whose time is all overhead."""
        blank = message.get("blank", 0)
        self._model = _nothing if blank else self.models[message["model"]]
        slots, mixes = message["slots"], message.get("mixes", [])
        self._prepared = [[]] * blank or [self._arguments(*each) for each in zip(slots, mixes, strict=True)]
        self._observer = self.observer(message["observe"])
        self.placement.before_batch(observe=message["observe"])
        return {}

    def do_go(self, message: dict[str, Any]) -> dict[str, Any]:
        model, outputs = self._model, self._outputs
        with torch.no_grad(), self._observer:
            said = self.placement.run(model, self._prepared, outputs)  # type: ignore[arg-type]
        if model is _nothing:
            outputs.clear()
        pointers: list[int] = []
        for output in outputs:
            if type(output) is torch.Tensor:
                pointers.append(_data_ptr(output))
            else:
                tensors: list[Any] = []
                flatten(output, is_tensor, tensors)
                pointers.extend(self.placement.address_of(tensor) for tensor in tensors)
        if len(pointers) > _MAX_POINTERS:
            raise ValueError(f"{len(pointers)} output tensors in one batch; at most {_MAX_POINTERS} are supported")
        if pointers:
            struct.pack_into(f"<{len(pointers)}Q", self._arena.memory, 0, *pointers)  # type: ignore[union-attr]
        return said

    def do_describe(self, message: dict[str, Any]) -> dict[str, Any]:
        outputs = [describe(output, self.placement.leaf_of) for output in self._outputs]
        return {"outputs": outputs, "input_ranges": self.placement.input_ranges()} | self.observations()

    def do_observe(self, message: dict[str, Any]) -> dict[str, Any]:
        """What was seen of the batch, without its outputs."""
        return self.observations()

    def do_collect(self, message: dict[str, Any]) -> dict[str, Any]:
        """The output of one call of the batch, where the supervisor can read it."""
        return describe(self._outputs[message["call"]], self.placement.leaf_of)

    def do_stage(self, message: dict[str, Any]) -> dict[str, Any]:
        """Copies slots of the arena to where they are mixed."""
        for slot in message["slots"]:
            self.placement.stage(slot, self._host_inputs(slot))
        return {}

    def do_gather(self, message: dict[str, Any]) -> dict[str, Any]:
        """Elements at places (as in a contiguous tensor) of each call's outputs of the last batch, their bytes one
        after the other; the supervisor knows types and numbers."""
        tensors: list[Any] = []
        for output, places in zip(self._outputs, message["places"], strict=True):
            before = len(tensors)
            flatten(output, is_tensor, tensors)
            if len(tensors) - before != len(places):
                raise ValueError(f"a timed call returned {len(tensors) - before} tensors, not {len(places)}")
        places = [wanted for places in message["places"] for wanted in places]
        return {"data": base64.b64encode(self.placement.elements(tensors, places)).decode()}

    def do_copy_back(self, message: dict[str, Any]) -> dict[str, Any]:
        """Inputs of slots as they are now, into slots of the arena."""
        for slot, target in zip(message["slots"], message["into"], strict=True):
            self.placement.copy_back(slot, self._host_inputs(target))
        return {}

    def do_overwrite(self, message: dict[str, Any]) -> dict[str, Any]:
        tensors: list[Any] = []
        for output in self._outputs:
            flatten(output, is_tensor, tensors)
        self.placement.overwrite(tensors, message["byte"])
        return {}

    def do_release(self, message: dict[str, Any]) -> dict[str, Any]:
        if message.get("keep"):
            self._held += self._outputs
        self._outputs.clear()
        self._prepared = []
        self.placement.release()
        return {}

    def observer(self, observe: bool) -> contextlib.AbstractContextManager[Any]:
        return contextlib.nullcontext()

    def observations(self) -> dict[str, Any]:
        return {}

    def tensor_at(self, offset: int, leaf: dict[str, Any]) -> torch.Tensor:
        """A tensor over arena memory."""
        assert self._arena is not None
        return view_at(self._arena.memory, offset, leaf)

    def _host_inputs(self, slot: int) -> list[torch.Tensor]:
        return [self.tensor_at(offset, leaf) for offset, leaf in zip(self._slots[slot], self._leaves, strict=True)]

    def _arguments(self, slot: int, mix: list[list[list[int]]] | None) -> list[Any]:
        if mix is None:
            return unflatten(self._input_node, self.placement.arguments(slot, self._host_inputs(slot)))
        return unflatten(self._input_node, self.placement.mixed(slot, self._leaves, mix))


def _nothing() -> None:
    """A model that does not even look at inputs."""


def answer_until_closed(
    channel: Channel,
    server: ModelServer,
    describe_error: Callable[[BaseException], dict[str, Any]],
    *,
    caught: type[BaseException] = Exception,
) -> None:
    """Answers until the supervisor hangs up; what `handle` raises goes back as the `error` that is described."""
    while True:
        try:
            message = channel.receive()
        except ChannelClosedError:
            return
        try:
            reply = server.handle(message)
        except caught as error:
            reply = {"error": describe_error(error)}
        channel.send(reply)


def is_tensor(value: Any) -> bool:
    return isinstance(value, torch.Tensor)


def describe(value: Any, leaf_of: Callable[[Any], dict[str, Any]]) -> dict[str, Any]:
    """Node and leaves of an output; a subclass of Tensor counts as a foreign type."""
    tensors: list[Any] = []
    node = flatten(value, is_tensor, tensors)
    return {
        "node": node,
        "leaves": [leaf_of(tensor) for tensor in tensors],
        "plain": all(type(tensor) in (torch.Tensor, torch.nn.Parameter) for tensor in tensors),
    }
