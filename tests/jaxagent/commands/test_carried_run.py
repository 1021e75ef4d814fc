"""A run in short sessions on machines that keep nothing: stopped by the clock, packed, unpacked elsewhere, resumed."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from jaxagent.cli.exits import DONE, TIME_UP
from jaxagent.commands.pack import pack_run, unpack_run
from jaxagent.config.load import load_config
from jaxagent.run.folder import RunFolder
from jaxagent.run.metrics_log import read_metrics
from rollout.store import TrajectoryStore

pytestmark = [pytest.mark.ray, pytest.mark.slow]

# Adapters on a decoder of Qwen2's family, dialogues in the syntax of Qwen's tool calls; replies are played, so that a
# session is short.
CONFIG = """\
extends: {chaos}
name: carried
model: {{family: qwen2}}
learner: {{lora: {{rank: 3, alpha: 6, targets: [q_proj, k_proj, v_proj, o_proj, gate_proj, up_proj, down_proj]}}, param_dtype: bfloat16, compute_dtype: bfloat16, ppo: {{kl_coef: 0.02, minibatches: 2}}}}
stages: {{single_turn: {{updates: 4}}, agentic: {{updates: 12}}}}
sandbox: {{backend: process}}
judge: {{baseline_dir: {baselines}}}
"""
MAX_SESSIONS = 12


def session(*arguments: str, log: Path) -> int:
    with log.open("ab") as file:
        return subprocess.run(
            [sys.executable, "-m", "jaxagent", "train", *arguments], stdout=file, stderr=file, timeout=400, check=False
        ).returncode


@pytest.mark.timeout(3000)
def test_a_run_that_is_carried_from_machine_to_machine_ends_as_one_that_stayed(tmp_path):
    config, log = tmp_path / "carried.yaml", tmp_path / "log"
    config.write_text(CONFIG.format(chaos=Path("configs/chaos.yaml").resolve(), baselines=tmp_path / "baselines"))
    stop_after = 45.0
    code = session(str(config), "--runs_dir", str(tmp_path), "--stop-after", str(stop_after), log=log)
    folder, codes, positions = RunFolder(tmp_path / "carried"), [code], []
    while code == TIME_UP:
        assert len(codes) < MAX_SESSIONS, log.read_text()[-4000:]
        number = len(codes)
        packed = pack_run(folder.root, tmp_path / f"pack{number}")
        positions.append((packed.stage, packed.updates))
        sizes = [path.stat().st_size for path in (tmp_path / f"pack{number}").rglob("*") if path.is_file()]
        assert len(sizes) <= 8 and max(sizes) <= 16 << 20
        folder = RunFolder(unpack_run(tmp_path / f"pack{number}", tmp_path / f"machine{number}" / "carried"))
        if len(positions) > 1 and positions[-1] == positions[-2]:
            stop_after *= 1.5  # a slow machine: a session that only starts up gets nowhere
        code = session("--resume", str(folder.root), "--stop-after", str(stop_after), log=log)
        codes.append(code)
    assert code == DONE, log.read_text()[-4000:]
    assert len(codes) >= 3, "the sessions were too long to stop anything"
    assert len(set(positions)) >= 2, positions

    stages = load_config(config).stages
    found = [(record["stage"], record["update"]) for record in read_metrics(folder.metrics)]
    assert len(found) == len(set(found)), "every update is on the curve once"
    with TrajectoryStore(folder.store, writable=False) as store:
        for stage in stages:
            if stage.kind != "ppo":
                continue
            assert [update for name, update in found if name == stage.name] == list(range(stage.updates))
            manifests = store.manifests(stage.name)
            taken = [name for manifest in manifests for name in manifest.trajectory_ids]
            numbers = sorted(int(name.rpartition("-")[2]) for name in taken)
            assert numbers == list(range(stage.updates * stage.trajectories_per_update)), "no ticket lost or twice"
    summary = json.loads(folder.summary.read_text())
    assert summary["heldout"]["after"]["num_tasks"] > 0
