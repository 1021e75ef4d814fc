"""`jaxagent watch`: what a run shows of itself while it goes on, and when it has ended."""

from __future__ import annotations

import io
import threading
import time
from pathlib import Path

import pytest
from report_run import make_run, make_trajectory
from rich.console import Console

from jaxagent.cli import main
from jaxagent.commands.watch import watch
from jaxagent.files.write import write_json
from jaxagent.report.watch_view import sparkline, view
from jaxagent.report.watched import RunWatcher
from jaxagent.run.metrics_log import MetricsLog
from rollout.chat import ChatFormat
from rollout.store import TrajectoryStore
from sandbox.types import Outcome


def shown(root: Path, *, width: int = 110) -> str:
    watcher = RunWatcher(root)
    console = Console(file=io.StringIO(), width=width, force_terminal=False)
    console.print(view(watcher.snapshot(), width=width))
    watcher.close()
    return console.file.getvalue()  # type: ignore[attr-defined]


def test_stages_curves_rollouts_and_results_are_shown(tmp_path: Path):
    text = shown(make_run(tmp_path, name="seen").root)
    lines = {line.split()[0]: line for line in text.splitlines() if line.split()}
    assert "3/3 rollouts" in lines["expert"] and "2/2 updates" in lines["agentic"] and "8 rollouts" in lines["agentic"]
    assert "finished" in text.splitlines()[0]
    text = " ".join(text.split())  # columns are as wide as what is in them
    assert "reward 0.00 ▁█ -1.00 … 0.00" in text and "profilers in use 50%" in text
    assert "double wrong -1 1.50x compile 3 turns, max_turns" in text
    assert "after" in text and "2.00 [2.00, 2.00]" in text


def test_nothing_is_wider_than_a_narrow_terminal(tmp_path: Path):
    assert max(map(len, shown(make_run(tmp_path, name="narrow").root, width=60).splitlines())) <= 60


def test_a_watcher_sees_what_is_added_and_ends_with_the_run(tmp_path: Path):
    folder = make_run(tmp_path, name="growing")
    folder.summary.unlink()
    watcher = RunWatcher(folder.root)
    before = watcher.snapshot()
    assert before.current is not None and before.current.name == "agentic" and not before.finished
    chat = ChatFormat.from_folder(folder.initial_model)
    with TrajectoryStore(folder.store) as store:
        store.append(make_trajectory(chat, "agentic", 50, outcome=Outcome.CORRECT, reward=3.0))
    log = MetricsLog(folder)
    log.write(stage="agentic", update=2, values={"mean_reward": 3.0})
    log.close()
    after = watcher.snapshot()
    watcher.close()
    assert after.newest[0].trajectory_id == "agentic-50" and after.records[-1]["mean_reward"] == 3.0
    assert after.stages[-1].rollouts == before.stages[-1].rollouts + 1
    assert after.silent_s is not None and after.silent_s < 60

    console = Console(file=io.StringIO(), width=100, force_terminal=True)
    watching = threading.Thread(
        target=watch, args=(folder.root,), kwargs={"interval_s": 0.05, "once": False, "console": console}
    )
    watching.start()
    time.sleep(0.3)
    assert watching.is_alive()
    write_json(folder.summary, {"name": "growing", "seconds": 1.0})
    watching.join(timeout=20)
    assert not watching.is_alive() and "finished" in console.file.getvalue()  # type: ignore[attr-defined]


def test_a_curve_keeps_its_last_points_and_shows_gaps():
    assert sparkline([5.0, 0.0, None, 7.0], points=3) == "▁ █"
    assert sparkline([1.0, 1.0], points=5) == "▄▄" and sparkline([None], points=5) == ""


def test_the_command_prints_once_without_a_terminal_and_says_what_is_no_run(
    tmp_path: Path, capsys: pytest.CaptureFixture
):
    folder = make_run(tmp_path, name="printed")
    folder.summary.unlink()
    assert main(["watch", str(folder.root)]) == 0  # no terminal: it would never end by itself
    assert "agentic" in capsys.readouterr().out
    assert main(["watch", str(tmp_path)]) == 2
    assert "no run here" in capsys.readouterr().err
