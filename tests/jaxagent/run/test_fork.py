"""A run that starts where a stage of another one ended: whole or absent, also when it is killed as it is made."""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path

import pytest
from toys import random_trajectories

from jaxagent.config.load import ConfigError, load_config
from jaxagent.run.folder import RunFolder, create_run, open_run, read_origin
from jaxagent.run.fork import copy_start, keep_stage_end, stage_end_checkpoint
from rollout.store import TrajectoryStore

DEMO = "configs/demo.yaml"


@pytest.fixture
def source(tmp_path) -> RunFolder:
    """A run that has finished its stage `lessons`, and has the expert's trajectories in its log."""
    folder = create_run(load_config(Path(DEMO), ["--runs_dir", str(tmp_path), "--name", "base"]))
    (folder.checkpoints / "3" / "arrays").mkdir(parents=True)
    (folder.checkpoints / "3" / "arrays" / "data").write_bytes(b"weights")
    folder.verdicts.write_text('{"key": "k", "judgement": {}}\n')
    stages = [stage.name for stage in open_run(folder.root)[1].stages]
    keep_stage_end(folder, stages[1], 3)
    with TrajectoryStore(folder.store) as store:
        for trajectory in random_trajectories(3):
            store.append(trajectory)
    return folder


def fork_config(source: RunFolder, *overrides: str):
    after = open_run(source.root)[1].stages[1].name
    start = f"{{run: {source.root}, after: {after}}}"
    return load_config(
        Path(DEMO), ["--runs_dir", str(source.root.parent), "--name", "fork", "--start_from", start, *overrides]
    )


FORKS_AND_DIES = """
import os, signal, sys
from pathlib import Path
from jaxagent.run.fork import copy_start
from jaxagent.config.load import load_config
from jaxagent.run.folder import create_run

def fill(part):
    copy_start(config, part)
    os.kill(os.getpid(), signal.SIGKILL)

config = load_config(Path(sys.argv[1]), sys.argv[2:])
create_run(config, fill=fill)
"""


def test_a_fork_killed_while_it_is_made_is_no_run_and_can_be_made_again(source):
    config = fork_config(source)
    assert config.start_from is not None
    overrides = ["--runs_dir", str(config.runs_dir), "--name", "fork"]
    overrides += ["--start_from", f"{{run: {source.root}, after: {config.start_from.after}}}"]
    died = subprocess.run([sys.executable, "-c", FORKS_AND_DIES, DEMO, *overrides], check=False)
    assert died.returncode == -signal.SIGKILL
    assert [path.name for path in source.root.parent.glob(".fork.*.part")], "it was killed before it copied anything"
    with pytest.raises(ConfigError, match="no run here"):
        open_run(source.root.parent / "fork")

    folder = create_run(config, fill=lambda part: copy_start(config, part))
    assert (folder.checkpoints / "3" / "arrays" / "data").read_bytes() == b"weights"
    assert folder.verdicts.read_text() == source.verdicts.read_text()
    assert open_run(folder.root)[1] == config
    assert read_origin(folder)["started_from"] == read_origin(source)["id"] != read_origin(folder)["id"]
    assert sorted(path.name for path in source.root.parent.iterdir()) == ["base", "fork"]


def test_a_fork_of_a_stage_that_has_not_ended_says_so_and_leaves_nothing(source):
    source.stage_end(open_run(source.root)[1].stages[1].name).joinpath("3").rename(source.root / "elsewhere")
    with pytest.raises(ConfigError, match="has not finished stage.*--resume"):
        create_run(fork_config(source), fill=lambda part: copy_start(fork_config(source), part))
    assert [path.name for path in source.root.parent.iterdir()] == ["base"]


def test_a_half_linked_checkpoint_is_not_taken_for_a_stages_end(tmp_path):
    folder = RunFolder(tmp_path)
    (folder.stage_end("a") / "4.part").mkdir(parents=True)
    assert stage_end_checkpoint(folder, "a") is None
    (folder.checkpoints / "4").mkdir(parents=True)
    keep_stage_end(folder, "a", 4)
    keep_stage_end(folder, "a", 4)
    assert stage_end_checkpoint(folder, "a") == folder.stage_end("a") / "4"
