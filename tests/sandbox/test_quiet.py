"""QuietLease on real processes: they stop, they go on, and they go on when the holder is killed."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from sandbox.quiet import QuietError, QuietLease

ROOT = Path(__file__).resolve().parents[2]
HOLDER = """
import sys, time
sys.path.insert(0, {root!r})
from sandbox.quiet import QuietLease
lease = QuietLease({registry!r})
with lease.hold():
    print("holding", flush=True)
    time.sleep(60)
"""


def state_of(pid: int) -> str:
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]


def wait_for(condition, timeout_s: float = 10.0) -> bool:
    deadline = time.monotonic() + timeout_s
    while time.monotonic() < deadline:
        if condition():
            return True
        time.sleep(0.01)
    return False


@pytest.fixture
def sleeper() -> Iterator[subprocess.Popen[str]]:
    """A shell with a child, in a process group of its own; prints the child's pid."""
    process = subprocess.Popen(
        ["bash", "-c", "sleep 300 & echo $!; wait"], stdout=subprocess.PIPE, text=True, start_new_session=True
    )
    yield process
    os.killpg(process.pid, signal.SIGKILL)
    process.wait()
    process.stdout.close()


@pytest.fixture
def lease(tmp_path: Path) -> Iterator[QuietLease]:
    lease = QuietLease(tmp_path / "registry")
    yield lease
    lease.close()


def start_holder(registry: Path) -> subprocess.Popen[str]:
    code = HOLDER.format(root=str(ROOT), registry=str(registry))
    holder = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True)
    assert holder.stdout.readline() == "holding\n"
    return holder


@contextlib.contextmanager
def a_holder_for_half_a_second(registry: Path) -> Iterator[float]:
    """Killed then. Since when it holds the lease."""
    holder = start_holder(registry)
    killer = subprocess.Popen(["bash", "-c", f"sleep 0.5; kill -9 {holder.pid}"])
    yield time.monotonic()
    killer.wait()
    holder.wait()
    holder.stdout.close()


def test_a_registered_process_and_its_child_stand_still_inside_and_go_on_after(lease, sleeper):
    child = int(sleeper.stdout.readline())
    lease.register(sleeper.pid)
    with lease.hold() as frozen:
        assert frozen == 2
        assert state_of(sleeper.pid) == "T" and state_of(child) == "T"
    assert wait_for(lambda: state_of(sleeper.pid) == "S" and state_of(child) == "S")


def test_a_process_group_can_be_registered_too(lease, sleeper):
    child = int(sleeper.stdout.readline())
    lease.register(sleeper.pid, group=True)
    with lease.hold():
        assert state_of(child) == "T"
    assert wait_for(lambda: state_of(child) == "S")


def test_killing_the_holder_resumes_what_it_froze(tmp_path, lease, sleeper):
    child = int(sleeper.stdout.readline())
    lease.register(sleeper.pid)
    holder = start_holder(tmp_path / "registry")
    assert state_of(sleeper.pid) == "T" and state_of(child) == "T"
    holder.kill()
    holder.wait()
    holder.stdout.close()
    assert wait_for(lambda: state_of(sleeper.pid) == "S" and state_of(child) == "S")


def test_killing_holder_and_helper_leaves_the_next_holder_to_resume(tmp_path, lease, sleeper):
    child = int(sleeper.stdout.readline())
    lease.register(sleeper.pid)
    holder = start_holder(tmp_path / "registry")
    helpers = Path(f"/proc/{holder.pid}/task/{holder.pid}/children").read_text().split()
    for helper in helpers:
        os.kill(int(helper), signal.SIGKILL)
    holder.kill()
    holder.wait()
    holder.stdout.close()
    time.sleep(0.1)
    assert state_of(sleeper.pid) == "T"  # nobody is left to resume it
    with lease.hold():
        assert state_of(sleeper.pid) == "T"
    assert wait_for(lambda: state_of(sleeper.pid) == "S" and state_of(child) == "S")


def test_the_holder_and_all_above_it_are_never_frozen(lease):
    lease.register(os.getpid())
    lease.register(os.getppid())
    with lease.hold():
        assert state_of(os.getpid()) == "R"
        assert state_of(os.getppid()) != "T"


def test_a_protected_process_runs_on_inside_a_registered_tree(lease, sleeper):
    child = int(sleeper.stdout.readline())
    lease.register(sleeper.pid)
    lease.protect(child)
    with lease.hold():
        assert state_of(sleeper.pid) == "T" and state_of(child) in ("S", "R")  # asleep, or still on its way to it


def test_what_was_stopped_before_stays_stopped_after(lease, sleeper):
    child = int(sleeper.stdout.readline())
    os.kill(child, signal.SIGSTOP)
    assert wait_for(lambda: state_of(child) == "T")
    lease.register(sleeper.pid)
    with lease.hold():
        pass
    assert wait_for(lambda: state_of(sleeper.pid) == "S")
    assert state_of(child) == "T"


def test_a_second_holder_waits_for_the_first(tmp_path, lease):
    with a_holder_for_half_a_second(tmp_path / "registry") as began, lease.hold():
        assert time.monotonic() - began > 0.4


def test_nobody_is_frozen_while_another_has_to_stay_awake(tmp_path, lease, sleeper):
    child = int(sleeper.stdout.readline())
    lease.register(sleeper.pid)
    frozen = threading.Event()

    def freeze() -> None:
        with lease.hold():
            frozen.set()

    other = QuietLease(tmp_path / "registry")
    holder = threading.Thread(target=freeze)
    with other.awake(), lease.awake():
        holder.start()
        assert not frozen.wait(0.4) and state_of(child) != "T"
    assert frozen.wait(10.0)
    holder.join()


def test_whoever_has_to_stay_awake_waits_for_the_holder(tmp_path, lease):
    with a_holder_for_half_a_second(tmp_path / "registry") as began, lease.awake():
        assert time.monotonic() - began > 0.4


def test_a_process_that_is_gone_is_not_frozen_under_its_number(lease, tmp_path):
    process = subprocess.Popen(["sleep", "300"])
    lease.register(process.pid)
    process.kill()
    process.wait()
    with lease.hold() as frozen:
        assert frozen == 0
    assert not list((tmp_path / "registry").glob("tree-*"))
    with pytest.raises(ProcessLookupError):
        lease.register(process.pid)


def test_an_entry_that_goes_while_the_registry_is_read_is_passed_over(lease, tmp_path, sleeper):
    sleeper.stdout.readline()
    lease.register(sleeper.pid)
    (tmp_path / "registry" / f"tree-{os.getpid()}").symlink_to(tmp_path / "gone")  # listed, and not there when read
    with lease.hold():
        assert state_of(sleeper.pid) == "T"


def test_a_helper_that_dies_while_the_lease_is_asked_for_is_an_error_of_its_own(lease, sleeper):
    sleeper.stdout.readline()
    with lease.hold():
        pass
    os.kill(lease._helper.pid, signal.SIGSTOP)
    threading.Timer(0.2, os.kill, (lease._helper.pid, signal.SIGKILL)).start()
    with pytest.raises(QuietError, match="helper ended"), lease.hold():
        pass
    lease.register(sleeper.pid)
    with lease.hold():
        assert state_of(sleeper.pid) == "T"


def test_the_lease_can_be_held_again_after_its_helper_was_killed(lease, sleeper):
    sleeper.stdout.readline()
    lease.register(sleeper.pid)
    with lease.hold():
        os.kill(lease._helper.pid, signal.SIGKILL)
        lease._helper.wait()
        assert state_of(sleeper.pid) == "T"
    assert wait_for(lambda: state_of(sleeper.pid) == "S")
    with lease.hold():
        assert state_of(sleeper.pid) == "T"
