"""How a worker's end is told."""

from __future__ import annotations

import signal

import pytest

from sandbox.judge.worker import WorkerDiedError


@pytest.mark.parametrize(
    ("status", "reason"),
    [
        (int(signal.SIGSEGV), "killed by SIGSEGV"),
        (45, "killed by signal 45"),  # of the real-time range, which Python has no names for
        (3 << 8, "exited with status 3"),
    ],
)
def test_every_way_to_end_has_words(status: int, reason: str) -> None:
    assert WorkerDiedError(status, "").reason == reason
