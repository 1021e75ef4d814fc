"""What a failure of the candidate's process, or an output that cannot be read, says of the candidate."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import numpy as np

from sandbox.judge.arena import span_bytes
from sandbox.judge.values import ITEMSIZE
from sandbox.judge.worker import WorkerDiedError, WorkerError, WorkerReplyError, WorkerTimeoutError
from sandbox.types import Outcome

_MAX_SPAN_FACTOR, _MAX_SPAN_BYTES = 4, 64 << 20
"""A column of a matrix is an honest result; what is spread thinner than the factor and over more than the bytes is not
read."""
_DEVICE_TROUBLE = re.compile(r"AcceleratorError|OutOfMemoryError|CUDA|CUBLAS|cuDNN|out of memory", re.IGNORECASE)
"""Errors that a sick device, or one that somebody else has filled, can cause as well as a candidate."""


class RejectedError(Exception):
    """The candidate failed; becomes a Judgement."""

    def __init__(self, outcome: Outcome, message: str, *, device_trouble: bool = False) -> None:
        super().__init__(message)
        self.outcome = outcome
        self.message = message
        self.device_trouble = device_trouble
        """It may have been the device: only a repeat on one that is known to be well counts."""


def rejection_for(
    error: WorkerError, phase: str, *, timeout_s: float, device: str, observed: Callable[[dict[str, Any]], None]
) -> RejectedError:
    """What a failure of the candidate's process says of the candidate. `phase` is what it was asked to do; `observed`
    raises RejectedError where what the process says of itself is a reason for a refusal."""
    if isinstance(error, WorkerTimeoutError):
        return RejectedError(
            Outcome.TIMEOUT,
            f"{phase}: no end after {timeout_s:g} s in all; look for an endless loop, a dead lock or far too much work",
            device_trouble=device == "cuda",
        )
    if isinstance(error, WorkerDiedError):
        return _of_its_end(error, phase, device)
    assert isinstance(error, WorkerReplyError)
    if error.kind == "ForeignOperatorError":
        text = f"{phase}: {error.message}; torch may only allocate, view and copy tensors, compute in kernels/"
        return RejectedError(Outcome.REFUSED, f"{text}\n{error.traceback}".rstrip())
    try:
        observed(error.observed)
    except RejectedError as refusal:  # what it tried says more than what became of it
        return refusal
    if error.kind == "contract":
        return RejectedError(Outcome.RUNTIME_ERROR, f"{phase}: {error.message}")
    return RejectedError(
        Outcome.RUNTIME_ERROR,
        f"{phase}: {error.kind}: {error.message}\n{error.traceback}".rstrip(),
        device_trouble=device == "cuda" and bool(_DEVICE_TROUBLE.search(f"{error.kind}: {error.message}")),
    )


def check_leaf(
    leaf: dict[str, Any], dtype: str, expected_shape: tuple[int, ...], expected_bytes: int, path: str
) -> None:
    """Is the described output one the supervisor can and may read? Raises RejectedError.

    `expected_bytes`: what the reference's own output lies in. Where that was expanded, so may this one be.
    """
    shape, stride = leaf["shape"], leaf["stride"]
    if leaf["dtype"] != dtype or tuple(shape) != expected_shape:
        raise RejectedError(
            Outcome.WRONG,
            f"{path} must be {dtype} {expected_shape}, got {leaf['dtype']} {tuple(shape)}",
        )
    if 0 in shape:
        return
    if not leaf["address"] or len(stride) != len(shape) or any(step < 0 for step in stride):
        raise RejectedError(
            Outcome.WRONG,
            f"{path} must be an ordinary strided tensor with memory of its own, on the device of the inputs",
        )
    itemsize = ITEMSIZE[leaf["dtype"]]
    dense = itemsize * int(np.prod(shape))
    if span_bytes(leaf, itemsize) > max(_MAX_SPAN_FACTOR * dense, _MAX_SPAN_BYTES):
        raise RejectedError(
            Outcome.WRONG, f"{path} is spread too thinly over memory (strides {stride}); return a contiguous tensor"
        )
    if span_bytes(leaf, itemsize) < min(dense, expected_bytes):
        raise RejectedError(
            Outcome.WRONG, f"{path} has overlapping elements (strides {stride}); every element needs memory of its own"
        )


def _of_its_end(error: WorkerDiedError, phase: str, device: str) -> RejectedError:
    if error.by_filter:
        return RejectedError(
            Outcome.REFUSED,
            f"{phase}: the process made a system call that no kernel needs (processes, sockets, signals, other "
            f"processes' memory) and was killed\n{error.stderr.strip()}".rstrip(),
        )
    if "SIGTRAP" in error.reason and device == "cpu":
        return RejectedError(
            Outcome.REFUSED,
            f"{phase}: a kernel called a function of torch's libraries that computes, or generated code; these are "
            "gone once ModelNew is built, do all of the work in kernels of your own",
        )
    text = (
        f"{phase}: the process was {error.reason}"
        if error.reason.startswith("killed")
        else (f"{phase}: the process {error.reason} before it was done; a candidate must not end its process")
    )
    if "SIGSEGV" in error.reason or "SIGBUS" in error.reason:
        text += "; a kernel reads or writes outside its tensors (check sizes, strides and index arithmetic)"
    text += f"\n{error.stderr.strip()}" if error.stderr else ""
    return RejectedError(Outcome.RUNTIME_ERROR, text, device_trouble=device == "cuda")
