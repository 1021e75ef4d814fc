from __future__ import annotations

from types import SimpleNamespace

import pytest

from sandbox.judge.oracle_side import OracleSide
from sandbox.judge.worker import WorkerReplyError
from sandbox.tasks import TaskError
from sandbox.types import DeviceError, Task

FULL = {"type": "OutOfMemoryError", "message": "CUDA out of memory. Tried to allocate 200.00 GiB."}


def failing(error: dict[str, str], *, has_room: bool) -> OracleSide:
    def receive(*, deadline: float) -> None:
        raise WorkerReplyError(error)

    worker = SimpleNamespace(send=lambda message: None, receive=receive)
    return OracleSide(worker, Task(task_id="large", code=""), "cuda", has_room=has_room)  # type: ignore[arg-type]


def test_a_reference_too_large_for_an_empty_device_is_a_task_to_leave_out():
    with pytest.raises(TaskError, match="task large: the reference needs more memory than the device has"):
        failing(FULL, has_room=True).ask({"op": "build"})


@pytest.mark.parametrize(
    ("error", "has_room"),
    [
        (FULL, False),
        ({"type": "AcceleratorError", "message": "CUDA error: an illegal memory access was encountered"}, True),
        ({"type": "RuntimeError", "message": "cuDNN error: CUDNN_STATUS_INTERNAL_ERROR"}, True),
    ],
)
def test_a_device_that_somebody_filled_or_broke_is_our_trouble(error, has_room):
    with pytest.raises(DeviceError):
        failing(error, has_room=has_room).ask({"op": "build"})


def test_what_the_tasks_code_raises_is_the_tasks():
    with pytest.raises(TaskError, match="does not run: KeyError: x"):
        failing({"type": "KeyError", "message": "x"}, has_room=True).ask({"op": "build"})
