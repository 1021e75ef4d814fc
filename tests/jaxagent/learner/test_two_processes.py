"""Two processes of two CPU devices each compute what one process with four does, and their checkpoint serves it."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

pytestmark = pytest.mark.slow
HELPERS = Path(__file__).parents[1]


def start(*arguments: str) -> subprocess.Popen[str]:
    kept = {name: value for name, value in os.environ.items() if name not in ("XLA_FLAGS", "JAX_NUM_CPU_DEVICES")}
    paths = os.pathsep.join(map(str, [HELPERS.parents[1], HELPERS, HELPERS / "learner"]))
    environment = kept | {"PYTHONPATH": paths, "JAX_PLATFORMS": "cpu", "JAX_DISABLE_MOST_OPTIMIZATIONS": "1"}
    command = [sys.executable, str(HELPERS / "learner_pair.py"), *arguments]
    return subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)


def finish(*processes: subprocess.Popen[str]) -> None:
    try:
        for process in processes:
            said, _ = process.communicate(timeout=280)
            assert process.returncode == 0, said[-4000:]
    finally:
        for process in processes:
            process.kill()


@pytest.fixture(scope="module")
def left(tmp_path_factory):
    """What the processes left in their folder, by name."""
    folder = tmp_path_factory.mktemp("pair")
    with socket.socket() as free:
        free.bind(("localhost", 0))
        port = str(free.getsockname()[1])
    finish(*(start(rank, str(folder), port) for rank in "01"))
    finish(start("alone", str(folder)))
    return {path.stem: dict(np.load(path)) for path in folder.glob("*.npz")}


def assert_alike(got, want, **tolerance):
    assert got.keys() == want.keys()
    for name in want:
        np.testing.assert_allclose(got[name], want[name], err_msg=name, **tolerance)


def test_two_processes_train_as_one_with_as_many_devices(left):
    metrics = sum(name.startswith("metric/") for name in left["alone"])
    assert metrics > 40
    assert_alike(left["pair"], left["alone"], rtol=1e-5, atol=1e-6)


def test_one_process_restores_what_two_have_saved(left):
    weights = {name: array for name, array in left["pair"].items() if not name.startswith("metric/")}
    assert_alike({name: left["restored"][name] for name in weights}, weights, rtol=0, atol=0)


def test_one_process_goes_on_where_two_have_stopped(left):
    assert_alike(left["restored_next"], left["alone_next"], rtol=1e-4, atol=1e-5)
