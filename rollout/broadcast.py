"""Weights from the learner's device to the workers of an engine elsewhere: a process group of NCCL (gloo on CPUs).

One group for each start of each engine, so that one which fails takes nobody along: its next start joins another. The
learner is rank 0. Both sides agree over a TCP store before any of them enters the collective, so what waits for a peer
that never comes is a request with a time limit, not a kernel on the device:

    worker   ready: so many parts ──►            receive ──► checksum
    learner                       ──► go: so many  send
"""

from __future__ import annotations

import os
import time
from collections.abc import Sequence
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed import PrefixStore, TCPStore  # pyright: ignore[reportPrivateImportUsage]

from rollout.packages import PackedPart, WeightsError

_JOIN = "join"
_POLL_S = 0.0005


def host_store(host: str, *, timeout_s: float) -> TCPStore:
    """The learner's: groups meet there. Its port is chosen by the system."""
    return TCPStore(host, 0, is_master=True, wait_for_workers=False, timeout=timedelta(seconds=timeout_s))


class WeightsGroup:
    """The learner and the workers of one engine. After any error it is of no more use: close it."""

    def __init__(
        self, *, host: str, port: int, name: str, rank: int, size: int, device: torch.device, timeout_s: float
    ) -> None:
        """Returns once every rank is connected, and has received something, which is when NCCL makes its channels.

        Raises WeightsError after `timeout_s`, which is the limit of every later step too.
        """
        self.name, self._rank, self._size, self._device = name, rank, size, device
        self._limit = timedelta(seconds=timeout_s)
        try:
            # A client for each group: one that waits in another thread would hold up its requests.
            store = TCPStore(host, port, is_master=False, timeout=self._limit)
            self._store = PrefixStore(name, store)
            self._group = _new_group(self._store, rank, size, device, self._limit)
        except RuntimeError as error:
            raise self._error("joining", error) from error
        token = torch.ones(1, dtype=torch.uint8, device=device)
        part = PackedPart(offset=0, num_bytes=1, checksum="", tensors=[])
        if rank == 0:
            self.send(_JOIN, token, [part])
        else:
            self.receive(_JOIN, token, [part], wanted=1)

    def send(self, exchange: str, buffer: torch.Tensor, parts: Sequence[PackedPart]) -> int:
        """Of `buffer`, the first parts that the workers want; returns how many. `exchange` names this one sending."""
        try:
            wanted = [int(self._store.get(f"{exchange}/ready/{rank}")) for rank in range(1, self._size)]
            self._store.set(f"{exchange}/go", str(max(wanted)))
        except RuntimeError as error:
            raise self._error(f"waiting for the engine to be ready for {exchange}", error) from error
        self._broadcast(buffer, parts[: max(wanted)])
        return max(wanted)

    def receive(self, exchange: str, buffer: torch.Tensor, parts: Sequence[PackedPart], *, wanted: int) -> int:
        """Into `buffer`, at least the first `wanted` parts; returns how many came."""
        try:
            self._store.set(f"{exchange}/ready/{self._rank}", str(wanted))
            count = int(self._store.get(f"{exchange}/go"))
        except RuntimeError as error:
            raise self._error(f"waiting for the learner to send {exchange}", error) from error
        self._broadcast(buffer, parts[:count])
        return count

    def close(self) -> None:
        """Leaves the group; whoever waits in it gets an error. Safe to call twice."""
        group, self._group = self._group, None
        if group is not None and self._device.type == "cuda":
            group.abort()

    def _broadcast(self, buffer: torch.Tensor, parts: Sequence[PackedPart]) -> None:
        if self._group is None:
            raise WeightsError(f"weights group {self.name}: it was closed")
        options = dist.BroadcastOptions()
        options.rootRank, options.rootTensor = 0, 0
        deadline = time.monotonic() + self._limit.total_seconds()
        try:
            for part in parts:
                stretch = buffer[part.offset : part.offset + part.num_bytes]
                self._wait(self._group.broadcast([stretch], options), deadline)
        except RuntimeError as error:
            self.close()
            raise self._error("the transfer", error) from error

    def _wait(self, work: Any, deadline: float) -> None:
        if self._device.type != "cuda":
            work.wait(self._limit)
            return
        with torch.cuda.device(self._device):
            work.wait()  # of the stream; this thread goes on
            done = torch.cuda.Event()
            done.record()
            while not done.query():
                if time.monotonic() > deadline:
                    raise RuntimeError(f"not done after {self._limit.total_seconds():g} s")
                time.sleep(_POLL_S)

    def _error(self, what: str, error: Exception) -> WeightsError:
        reason = str(error).splitlines()[0] if str(error) else type(error).__name__
        return WeightsError(
            f"weights group {self.name}, rank {self._rank} of {self._size}: {what} failed within "
            f"engine.publish_timeout_s={self._limit.total_seconds():g}: {reason}"
        )


def _new_group(store: Any, rank: int, size: int, device: torch.device, limit: timedelta) -> Any:
    """A group of its own, beside whatever groups torch.distributed has in this process."""
    if device.type != "cuda":
        return dist.ProcessGroupGloo(store, rank, size, limit)
    # torch's watchdog would end the process where a transfer fails; here the error is handled, and the time limited.
    os.environ.setdefault("TORCH_NCCL_ASYNC_ERROR_HANDLING", "0")
    os.environ.setdefault("TORCH_NCCL_ENABLE_MONITORING", "0")
    options = dist.ProcessGroupNCCL.Options()
    options._timeout = limit
    group = dist.ProcessGroupNCCL(store, rank, size, options)
    group._set_sequence_number_for_group()
    return group
