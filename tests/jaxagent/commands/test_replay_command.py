"""`jaxagent replay` on a run folder whose one trajectory was made with the real judge."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from jaxagent.cli import main
from jaxagent.config.load import load_config
from jaxagent.run.folder import create_run
from jaxagent.synthesis.expert import ExpertPolicy
from jaxagent.synthesis.sources import resolve_tasks
from rollout.config import DialogueConfig
from rollout.store import TrajectoryStore
from rollout.worker import RolloutWorker
from sandbox.config import SandboxConfig
from sandbox.judge.local import LocalJudge

OVERRIDES = ["--sandbox.backend", "process"]


@pytest.fixture
async def run(tmp_path: Path) -> Path:
    config = load_config(Path("configs/smoke.yaml"), [*OVERRIDES, "--runs_dir", str(tmp_path)])
    folder = create_run(config)
    judge = LocalJudge(config.judge.model_copy(update={"quiet": False}), config.compile)
    try:
        worker = RolloutWorker(ExpertPolicy(), judge, SandboxConfig(backend="process"), config.tasks.skill)
        trajectory = await worker.run(
            resolve_tasks(config.tasks.train)[0], stage="expert", sample_index=0, seed=1,
            dialogue=DialogueConfig(max_turns=4, max_reply_tokens=1000), trajectory_id="expert-000000",
        )  # fmt: skip
    finally:
        await judge.close()
    with TrajectoryStore(folder.store) as store:
        store.append(trajectory)
    return folder.root


@pytest.mark.slow
def test_a_stored_trajectory_is_replayed_and_its_outcome_compared(run: Path, capsys) -> None:
    assert main(["replay", str(run), "--trajectory", "expert-000000", "--json"]) == 0
    record = json.loads(capsys.readouterr().out)
    assert record["same_outcome"] and record["stored"]["outcome"] == "correct"
    assert all(difference["numbers_only"] for difference in record["differences"])
    assert main(["replay", str(run), "--trajectory", "expert-000000"]) == 0
    assert "the same outcome: correct" in capsys.readouterr().out


def test_an_unknown_trajectory_or_run_is_named_with_what_there_is(tmp_path: Path, capsys) -> None:
    config = load_config(Path("configs/smoke.yaml"), ["--runs_dir", str(tmp_path)])
    folder = create_run(config)
    assert main(["replay", str(folder.root), "--trajectory", "agentic-000001"]) == 2
    assert "not among the 0 trajectories" in capsys.readouterr().err
    assert main(["replay", str(tmp_path / "nothing"), "--trajectory", "x"]) == 2
    assert "no run here" in capsys.readouterr().err
