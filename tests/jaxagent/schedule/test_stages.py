"""What a resumed run knows of the stages behind it, and how long it has taken."""

from __future__ import annotations

import dataclasses
import json
import os
import signal
import subprocess
import sys
import time

import pytest
from toys import random_trajectories

from jaxagent.config.run import SampleStage
from jaxagent.run import clock as run_clock
from jaxagent.run.clock import RunClock
from jaxagent.run.folder import RunFolder
from jaxagent.run.metrics_log import MetricsLog
from jaxagent.schedule.stages import is_sampled
from rollout.store import TrajectoryStore

SAMPLING = SampleStage(name="sampling", trajectories=3)


def test_a_sample_stage_is_done_once_its_trajectories_and_its_record_are_there(tmp_path):
    folder, made = RunFolder(tmp_path), random_trajectories(3)
    with TrajectoryStore(folder.store) as store:
        for number, trajectory in enumerate(made[:2]):
            store.append(dataclasses.replace(trajectory, trajectory_id=f"sampling-{number:06d}", stage=SAMPLING.name))
        log = MetricsLog(folder)
        log.write(stage="sampling", update=0, values={"seconds": 9.0})
        assert not is_sampled(folder, store, SAMPLING), "one of three is missing"
        store.append(dataclasses.replace(made[2], trajectory_id="sampling-000002", stage=SAMPLING.name))
        assert is_sampled(folder, store, SAMPLING)
        log.forget(stage="sampling", from_update=0)
        log.close()
        assert not is_sampled(folder, store, SAMPLING), "its record is missing"


def test_a_dropped_sample_needs_its_replacement(tmp_path):
    folder = RunFolder(tmp_path)
    log = MetricsLog(folder)
    log.write(stage="sampling", update=0, values={})
    log.close()
    with TrajectoryStore(folder.store) as store:
        for number, trajectory in enumerate(random_trajectories(4)):
            if number == 3:
                assert not is_sampled(folder, store, SAMPLING)
            name = f"sampling-{number:06d}"
            store.append(dataclasses.replace(trajectory, trajectory_id=name, stage=SAMPLING.name))
            if number == 0:
                store.drop(name, "too long")
        assert is_sampled(folder, store, SAMPLING)


TICKS_FOREVER = """
import sys, time
from pathlib import Path
from jaxagent.run import clock as run_clock
run_clock.WRITE_EVERY_S = 0.1
clock = run_clock.RunClock(Path(sys.argv[1]))
while True:
    time.sleep(0.02)
    clock.tick()
    print(clock.seconds, flush=True)
"""


def test_the_seconds_of_a_killed_session_are_counted(tmp_path):
    path = tmp_path / "clock.json"
    process = subprocess.Popen([sys.executable, "-c", TICKS_FOREVER, str(path)], stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    try:
        while (last := float(process.stdout.readline())) < 0.5:
            pass
    finally:
        os.kill(process.pid, signal.SIGKILL)
        process.wait()
        process.stdout.close()
    clock = RunClock(path)
    assert clock.seconds == pytest.approx(last, abs=0.4)
    time.sleep(0.05)
    clock.save()
    assert json.loads(path.read_text())["seconds"] >= 0.05 + last - 0.4
    assert RunClock(path).seconds >= clock.seconds - 0.1


def test_time_is_written_now_and_then_only(tmp_path, monkeypatch):
    clock = RunClock(tmp_path / "clock.json")
    clock.tick()
    assert not (tmp_path / "clock.json").exists()
    monkeypatch.setattr(run_clock, "WRITE_EVERY_S", 0.0)
    clock.tick()
    assert (tmp_path / "clock.json").exists()
