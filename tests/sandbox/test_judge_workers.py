"""Workers of a device: users of their own, and those that start or compile stand still on demand; real processes."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from sandbox.config import JudgeConfig
from sandbox.judge.spec import DeviceSpec
from sandbox.judge.workers import Workers


@pytest.fixture(scope="module")
def workers(tmp_path_factory) -> Iterator[Workers]:
    folder: Path = tmp_path_factory.mktemp("workers")
    config = JudgeConfig(baseline_dir=folder, jobs_per_device=2)
    workers = Workers(config, DeviceSpec(cores=sorted(os.sched_getaffinity(0))[:1]))
    workers.wait_ready()
    yield workers
    workers.close()


def state(pid: int) -> str:
    with open(f"/proc/{pid}/stat") as stat:
        return stat.read().rpartition(")")[2].split()[0]


def test_a_bystander_stands_still_on_demand_and_a_pair_or_one_that_is_timed_does_not(workers):
    with workers.oracle() as (bystander, _), workers.oracle() as (timed, _), workers.pair() as pair:
        with workers.bystanders_stopped(but=(timed,)):
            assert state(bystander.pid) == "T"
            assert all(state(each.pid) != "T" for each in (timed, pair.oracle, pair.candidate))
        assert state(bystander.pid) != "T"


def test_no_worker_is_forked_while_bystanders_stand_still(workers):
    started = threading.Event()

    def start() -> None:
        with workers.oracle():
            started.set()

    with workers.bystanders_stopped(but=()):
        thread = threading.Thread(target=start)
        thread.start()
        assert not started.wait(0.5)
    assert started.wait(10)
    thread.join()


def test_workers_end_side_by_side_with_new_ones_that_start(workers):
    """A worker that takes long to end keeps nobody from forking."""
    with workers.pair() as pair:
        os.kill(pair.candidate.pid, 0)
        waiting = threading.Thread(target=workers._zygote.reap, args=(pair.candidate.pid,))
        waiting.start()
        began = time.monotonic()
        with workers.oracle():
            assert time.monotonic() - began < 5
        pair.candidate.begin_end()
        waiting.join(10)
        assert not waiting.is_alive()
        pair.candidate._status = 0  # it is reaped


@pytest.mark.skipif(os.geteuid() != 0, reason="only root may change users")
def test_candidates_at_once_have_different_users_which_come_back(workers):
    for _ in range(3):
        with workers.pair() as first, workers.pair() as second, workers.user() as third:
            uids = {first.uid, second.uid, third}
            assert len(uids) == 3 and 0 not in uids
            with open(f"/proc/{first.candidate.pid}/status") as status:
                assert f"Uid:\t{first.uid}" in status.read()
