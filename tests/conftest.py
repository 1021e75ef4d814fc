"""Shared settings of the tests: eight virtual CPU devices for JAX, and strict shapes."""

from __future__ import annotations

import os
import resource
import shutil
import signal
import socket
from contextlib import contextmanager

import pytest

os.environ.setdefault("JAX_PLATFORMS", "cpu")
os.environ.setdefault("XLA_FLAGS", "--xla_force_host_platform_device_count=8")
os.environ.setdefault("JAX_NUMPY_RANK_PROMOTION", "raise")
os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")


def docker_answers() -> bool:
    with socket.socket(socket.AF_UNIX) as engine:
        engine.settimeout(5)
        try:
            engine.connect(os.environ.get("DOCKER_HOST", "unix:///var/run/docker.sock").removeprefix("unix://"))
        except OSError:
            return False
    return True


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Without a Docker Engine its tests are skipped, and say so; CI has one, and there they fail. So are nvcc's."""
    if shutil.which("nvcc") is None:
        for item in items:
            if item.get_closest_marker("nvcc"):
                item.add_marker(pytest.mark.skip(reason="no nvcc on PATH: it comes with the CUDA toolkit"))
    marked = [item for item in items if item.get_closest_marker("docker")]
    if marked and not os.environ.get("CI") and not docker_answers():
        for item in marked:
            item.add_marker(pytest.mark.skip(reason="no Docker Engine answers: scripts/start_docker.sh starts one"))


@pytest.fixture
def file_size_limit():
    """`with file_size_limit(bytes):` makes writes beyond a size fail in the kernel, after a part of them, as on a full
    disk. It is lifted before pytest reports the test: pytest's own output may be a file that is larger than the limit.
    """

    @contextmanager
    def limited(size: int):
        before = resource.getrlimit(resource.RLIMIT_FSIZE)
        handler = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        resource.setrlimit(resource.RLIMIT_FSIZE, (size, before[1]))
        try:
            yield
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, before)
            signal.signal(signal.SIGXFSZ, handler)

    return limited
