"""How long a run has taken, over all its sessions."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time

import pytest

from jaxagent.run import clock as run_clock
from jaxagent.run.clock import RunClock

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
