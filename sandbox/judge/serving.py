"""The part that candidate and reference share: calling a model on inputs that lie in shared memory.

Both sides of a comparison run this same code, so what it costs cancels out. A call has four steps, and the
supervisor stops the process between them (see device.py):

    prepare   build tensors over the arena's slots; nothing is in them yet
    go        run the model on every prepared input, write the outputs' addresses into the arena's table
    describe  say what the outputs are (type, shape, strides), now that the supervisor has read their bytes
    release   forget them
"""

from __future__ import annotations

import contextlib
import ctypes
import struct
from collections.abc import Callable
from typing import Any

import torch

from sandbox.judge.arena import TABLE_BYTES, Arena, span_bytes
from sandbox.judge.channel import Channel, ChannelClosedError
from sandbox.judge.values import ITEMSIZE, flatten, unflatten

_MAX_POINTERS = TABLE_BYTES // 8
_data_ptr = torch.Tensor.data_ptr
_untyped_storage = torch.Tensor.untyped_storage
_M_MMAP_THRESHOLD, _M_TRIM_THRESHOLD, _M_TOP_PAD, _M_PERTURB = -3, -1, -2, -6
_POISON = 0x80
"""glibc fills new blocks with its complement 0x7f: 3.4e38 as float32, so memory read before it is written shows."""


class ModelServer:
    """Answers the messages of one supervisor; `models` maps a name to what `go` calls."""

    def __init__(self, channel: Channel) -> None:
        self._channel = channel
        self._arena: Arena | None = None
        self._input_node: dict[str, Any] = {}
        self._leaves: list[dict[str, Any]] = []
        self._slots: list[list[int]] = []
        self._prepared: list[list[Any]] = []
        self._model: Callable[..., Any] | None = None
        self._observer: contextlib.AbstractContextManager[Any] = contextlib.nullcontext()
        self._outputs: list[Any] = []
        self.models: dict[str, Callable[..., Any]] = {}

    def handle(self, message: dict[str, Any]) -> dict[str, Any]:
        """Reply to one message; the handlers are the methods named do_*."""
        handler = getattr(self, f"do_{message['op']}", None)
        if handler is None:
            raise ValueError(f"unknown operation {message['op']!r}")
        return handler(message)

    def do_map(self, message: dict[str, Any]) -> dict[str, Any]:
        """Maps the arena: `inputs` is the node of one call's arguments, `slots` the offsets of their tensors."""
        (fd,) = self._channel.take_fds()
        self._arena = Arena(fd, message["size"])
        self._input_node, self._leaves, self._slots = message["inputs"], message["leaves"], message["slots"]
        return {}

    def do_prepare(self, message: dict[str, Any]) -> dict[str, Any]:
        self._model = self.models[message["model"]]
        self._prepared = [self._arguments(slot) for slot in message["slots"]]
        self._observer = self.observer(message["observe"])
        _MALLOPT(_M_PERTURB, _POISON if message["observe"] else 0)
        return {}

    def do_go(self, message: dict[str, Any]) -> dict[str, Any]:
        model, outputs = self._model, self._outputs
        with torch.no_grad(), self._observer:
            for arguments in self._prepared:
                outputs.append(model(*arguments))  # type: ignore[misc]
        pointers: list[int] = []
        for output in outputs:
            if type(output) is torch.Tensor:
                pointers.append(_data_ptr(output))
            else:
                tensors: list[Any] = []
                flatten(output, is_tensor, tensors)
                pointers.extend(address_of(tensor) for tensor in tensors)
        if len(pointers) > _MAX_POINTERS:
            raise ValueError(f"{len(pointers)} output tensors in one batch; at most {_MAX_POINTERS} are supported")
        if pointers:
            struct.pack_into(f"<{len(pointers)}Q", self._arena.memory, 0, *pointers)  # type: ignore[union-attr]
        return {}

    def do_describe(self, message: dict[str, Any]) -> dict[str, Any]:
        return {"outputs": [describe(output) for output in self._outputs]} | self.observations()

    def do_release(self, message: dict[str, Any]) -> dict[str, Any]:
        self._outputs.clear()
        self._prepared = []
        return {}

    def observer(self, observe: bool) -> contextlib.AbstractContextManager[Any]:
        return contextlib.nullcontext()

    def observations(self) -> dict[str, Any]:
        return {}

    def tensor_at(self, offset: int, leaf: dict[str, Any]) -> torch.Tensor:
        """A tensor over arena memory."""
        assert self._arena is not None
        dtype = getattr(torch, leaf["dtype"])
        num_bytes = span_bytes(leaf, ITEMSIZE[leaf["dtype"]])
        if num_bytes == 0:
            return torch.empty(leaf["shape"], dtype=dtype)
        flat = torch.frombuffer(
            self._arena.memory, dtype=dtype, count=num_bytes // ITEMSIZE[leaf["dtype"]], offset=offset
        )
        return flat.as_strided(leaf["shape"], leaf["stride"])

    def _arguments(self, slot: int) -> list[Any]:
        tensors = [self.tensor_at(offset, leaf) for offset, leaf in zip(self._slots[slot], self._leaves, strict=True)]
        return unflatten(self._input_node, tensors)


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


def address_of(tensor: Any) -> int:
    """First byte, or 0 where a tensor has no plain memory (sparse, lazy, another device)."""
    if type(tensor) not in (torch.Tensor, torch.nn.Parameter) or tensor.layout is not torch.strided:
        return 0
    return _data_ptr(tensor) if tensor.device.type == "cpu" else 0


def leaf_of(tensor: torch.Tensor) -> dict[str, Any]:
    """What the supervisor has to know to read a tensor."""
    dtype = str(tensor.dtype).removeprefix("torch.")
    address = address_of(tensor)
    if not address and tensor.numel():
        return {"dtype": dtype, "shape": list(tensor.shape), "stride": [], "address": 0, "storage": [0, 0]}
    storage = _untyped_storage(tensor)
    return {
        "dtype": dtype,
        "shape": list(tensor.shape),
        "stride": list(tensor.stride()),
        "address": address,
        "storage": [storage.data_ptr(), storage.nbytes()],
    }


def describe(value: Any) -> dict[str, Any]:
    """Node and leaves of an output; a subclass of Tensor counts as a foreign type."""
    tensors: list[Any] = []
    node = flatten(value, is_tensor, tensors)
    return {
        "node": node,
        "leaves": [leaf_of(tensor) for tensor in tensors],
        "plain": all(type(tensor) in (torch.Tensor, torch.nn.Parameter) for tensor in tensors),
    }


def settle_allocator() -> None:
    """Makes glibc keep freed blocks, as it does after a while in a long-lived process.

    By default its thresholds move with the sizes freed so far, so that the same task reads several times slower or
    faster by what its process did before. Fixed thresholds put candidate, eager and torch.compile on one footing.
    """
    _MALLOPT(_M_MMAP_THRESHOLD, 32 << 20)
    _MALLOPT(_M_TRIM_THRESHOLD, 1 << 30)
    _MALLOPT(_M_TOP_PAD, 64 << 20)


def _mallopt() -> Callable[[int, int], int]:
    function = ctypes.CDLL(None).mallopt
    function.argtypes, function.restype = [ctypes.c_int, ctypes.c_int], ctypes.c_int
    return function


_MALLOPT = _mallopt()
