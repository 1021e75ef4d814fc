"""Registries of the quiet lease: removed once nobody of their run is left, and never before."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from sandbox.quiet import QuietLease
from sandbox.quiet_registry import new_registry, remove_abandoned

ROOT = Path(__file__).resolve().parents[2]
DRIVER = """
import sys, time
from pathlib import Path
sys.path.insert(0, {root!r})
from sandbox.quiet_registry import new_registry
print(new_registry("run", Path({parent!r})), flush=True)
time.sleep(300)
"""


@pytest.fixture
def driver(tmp_path: Path) -> Iterator[tuple[subprocess.Popen[str], Path]]:
    """A process that has made a registry, and that registry, looking long unchanged."""
    code = DRIVER.format(root=str(ROOT), parent=str(tmp_path))
    process = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    registry = Path(process.stdout.readline().strip())
    make_old(registry)
    yield process, registry
    kill(process)
    process.stdout.close()


def kill(process: subprocess.Popen) -> None:
    process.kill()
    process.wait()


def make_old(registry: Path) -> None:
    an_hour_ago = time.time() - 3600
    os.utime(registry, (an_hour_ago, an_hour_ago))


def test_the_registry_of_a_killed_driver_is_removed_and_that_of_a_living_one_stays(driver, tmp_path):
    process, registry = driver
    assert remove_abandoned(tmp_path) == 0 and registry.is_dir()
    kill(process)
    assert remove_abandoned(tmp_path) == 1 and not registry.exists()


def test_a_registered_process_keeps_its_registry_when_the_driver_is_gone(driver, tmp_path):
    process, registry = driver
    sleeper = subprocess.Popen(["sleep", "300"])
    try:
        QuietLease(registry).register(sleeper.pid)
        kill(process)
        make_old(registry)
        assert remove_abandoned(tmp_path) == 0 and registry.is_dir()
    finally:
        kill(sleeper)
    make_old(registry)
    assert remove_abandoned(tmp_path) == 1


def test_a_pid_that_was_given_again_is_not_the_owner(driver, tmp_path):
    process, registry = driver
    pid, _, namespace = (registry / "owner").read_text().split()
    (registry / "owner").write_text(f"{pid} 1 {namespace}")
    make_old(registry)
    assert remove_abandoned(tmp_path) == 1, f"process {process.pid} of another start time is another process"


def test_what_is_young_or_shared_by_all_runs_or_of_other_numbers_of_processes_stays(driver, tmp_path):
    process, registry = driver
    kill(process)
    shared = tmp_path / f"jaxagent-quiet-{os.getuid()}"
    shared.mkdir()
    make_old(shared)
    os.utime(registry)
    assert remove_abandoned(tmp_path) == 0 and registry.is_dir(), "young"
    (registry / "owner").write_text("1 1 pid:[1]")
    make_old(registry)
    assert remove_abandoned(tmp_path) == 0 and registry.is_dir(), "of a container that shares the folder"
    assert shared.is_dir()


def test_a_lease_whose_empty_registry_was_removed_still_holds(tmp_path):
    registry = new_registry("run", tmp_path)
    lease = QuietLease(registry)
    for file in registry.iterdir():
        file.unlink()
    make_old(registry)
    assert remove_abandoned(tmp_path) == 1
    with lease.hold() as frozen:
        assert frozen == 0
    shutil.rmtree(registry)
    with lease.awake():
        assert registry.is_dir()
    lease.close()
