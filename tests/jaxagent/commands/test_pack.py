"""A run as a few small files: the one that is unpacked goes on where the packed one stood, and damage is named."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import jax
import numpy as np
import pytest
from learner_process import SMALL
from toys import random_trajectories

from jaxagent.cli import main
from jaxagent.cli.exits import BAD_USAGE, DONE
from jaxagent.commands import pack as packing
from jaxagent.commands.pack import PackError, pack_run, unpack_run
from jaxagent.config.load import load_config
from jaxagent.files.write import write_json
from jaxagent.learner import service as learner_service
from jaxagent.learner.service import LearnerService
from jaxagent.run.folder import RunFolder, create_run, open_run
from jaxagent.run.fork import stage_end_checkpoint
from jaxagent.schedule.stages import resumed_window
from jaxagent.synthesis.sources import resolve_tasks
from rollout.store import TrajectoryStore

SCHEDULE = """\
extends: {smoke}
name: carried
learner: {{lora: {{rank: 2, targets: [q_proj, v_proj, up_proj]}}, param_dtype: bfloat16}}
judge: {{baseline_dir: {baselines}}}
"""


def stored(store: TrajectoryStore, stage: str, count: int, *, seed: int) -> list:
    made = [
        replace(each, trajectory_id=f"{stage}-{number:06d}", stage=stage)
        for number, each in enumerate(random_trajectories(count, seed=seed))
    ]
    for trajectory in made:
        store.append(trajectory)
    return made


@pytest.fixture(scope="module")
def run(tmp_path_factory) -> tuple[RunFolder, LearnerService]:
    """A run in its last stage: one update is in the checkpoint, one has its manifest only, two rollouts wait."""
    root = tmp_path_factory.mktemp("runs")
    path = root / "carried.yaml"
    path.write_text(SCHEDULE.format(smoke=Path("configs/smoke.yaml").resolve(), baselines=root / "baselines"))
    config = load_config(path, ["--runs_dir", str(root), *SMALL])
    folder, stage = create_run(config), config.stages[-1]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(learner_service, "COMPILATION_CACHE", Path(jax.config.jax_compilation_cache_dir))
        service = LearnerService(config, str(folder.root))
    with TrajectoryStore(folder.store) as store:
        stored(store, "expert", 4, seed=1)
        made = stored(store, stage.name, 10, seed=2)
        for update in range(2):
            ids = [each.trajectory_id for each in made[4 * update : 4 * update + 4]]
            store.append_manifest(stage.name, update, ids, update)
        service.start_stage(config.stages[2])
        service.save({"stage": 2, "name": "single_turn", "updates": 2, "complete": True})
        service.start_stage(stage)
        service.ppo_update(made[:4], stage)
        service.save({"stage": 5, "name": stage.name, "updates": 1, "complete": False})
    folder.metrics.write_text(json.dumps({"stage": stage.name, "update": 0}) + "\n")
    folder.verdicts.write_text('{"key": "k", "judgement": {}}\n')
    (folder.log / "engine.log").write_text("long\n")
    write_json(folder.clock, {"seconds": 12.0})
    (root / "baselines" / "times").mkdir(parents=True)
    known = resolve_tasks(config.tasks.train)[0].task_id
    for name, task_id in (("mine", known), ("others", "of another run")):
        write_json(root / "baselines" / "times" / f"{name}.json", {"task_id": task_id})
    return folder, service


def elsewhere(pack: Path, baselines: Path) -> None:
    """As on another machine: the judge keeps its times in another, empty folder."""
    for path in baselines.glob("*.json"):
        path.unlink()
    assert (pack / "pack.json").is_file()


def everything(service: LearnerService) -> list[np.ndarray]:
    return [np.asarray(leaf) for leaf in jax.tree.leaves(service._learner._steps.arrays())]


def test_the_next_update_of_an_unpacked_run_is_that_of_the_run_that_was_packed(run, tmp_path):
    folder, service = run
    packed = pack_run(folder.root, tmp_path / "pack")
    assert (packed.stage, packed.updates, packed.whole) == ("agentic", 1, True)
    sizes = [path.stat().st_size for path in (tmp_path / "pack").rglob("*") if path.is_file()]
    assert len(sizes) <= 8 and max(sizes) <= 16 << 20 and sum(sizes) == packed.size_bytes
    config = open_run(folder.root)[1]
    times = config.judge.baseline_dir / "times"
    kept = {path.name: path.read_text() for path in times.iterdir()}
    elsewhere(tmp_path / "pack", times)

    there = RunFolder(unpack_run(tmp_path / "pack", tmp_path / "there"))
    assert [path.name for path in times.glob("*.json")] == ["mine.json"], "the times of this run's tasks, no others"
    for name, text in kept.items():
        (times / name).write_text(text)
    assert open_run(there.root)[1] == config
    for path in ("metrics.jsonl", "verdicts.jsonl", "origin.json", "clock.json", "log/engine.log"):
        assert (there.root / path).read_bytes() == (folder.root / path).read_bytes()
    resumed = LearnerService(config, str(there.root))
    assert resumed.restore() == {"stage": 5, "name": "agentic", "updates": 1, "complete": False}
    with TrajectoryStore(there.store, writable=False) as store, TrajectoryStore(folder.store, writable=False) as before:
        assert store.ids() == before.ids() and store.manifests() == before.manifests()
        batch = [store.get(name) for name in store.manifests("agentic")[1].trajectory_ids]
    stage = config.stages[-1]
    resumed.ppo_update(batch, stage)
    service.ppo_update(batch, stage)
    for got, want in zip(everything(resumed), everything(service), strict=True):
        np.testing.assert_array_equal(got, want)
    resumed.close()


def test_where_the_log_is_too_large_what_was_learned_from_stays_behind(run, tmp_path, monkeypatch):
    folder, _ = run
    whole = pack_run(folder.root, tmp_path / "whole")
    packed = pack_run(folder.root, tmp_path / "pack", max_mib=(whole.size_bytes + 3000) / 2**20)
    assert whole.whole and not packed.whole and packed.size_bytes < whole.size_bytes
    there = RunFolder(unpack_run(tmp_path / "pack", tmp_path / "there"))
    with TrajectoryStore(there.store, writable=False) as store:
        # update 0 is in the checkpoint; update 1 is to be repeated, 8 and 9 wait; no later stage reads the expert's
        assert store.ids() == [f"agentic-{number:06d}" for number in range(4, 10)]
        window = resumed_window(store, "agentic", batch_size=4, max_staleness=1, updates=3)
        assert window.updates == 2 and sorted(window.ready) == [8, 9]
    monkeypatch.setattr(packing, "MAX_PART_BYTES", 100)
    with pytest.raises(PackError, match="beside its checkpoint, takes more than .* bytes or 3 files of 100; raise"):
        pack_run(folder.root, tmp_path / "none")
    assert not (tmp_path / "none").exists()


def test_the_end_of_an_earlier_stage_can_be_packed_for_runs_that_start_there(run, tmp_path, capsys):
    folder, _ = run
    assert main(["run", "pack", str(folder.root), str(tmp_path / "pack"), "--after", "single_turn"]) == DONE
    assert "stage single_turn after 2 updates, the whole log" in capsys.readouterr().err
    assert main(["run", "unpack", str(tmp_path / "pack"), str(tmp_path / "there")]) == DONE
    assert stage_end_checkpoint(RunFolder(tmp_path / "there"), "single_turn") is not None
    assert main(["run", "pack", str(folder.root), str(tmp_path / "other"), "--after", "value"]) == BAD_USAGE
    assert "there are: single_turn" in capsys.readouterr().err
    assert not (tmp_path / "other").exists()


def test_a_part_that_is_changed_or_missing_is_named_and_nothing_is_unpacked(run, tmp_path):
    pack_run(run[0].root, tmp_path / "pack")
    part = tmp_path / "pack" / "run-0.tar.xz"
    part.write_bytes(part.read_bytes()[:-1] + b"?")
    with pytest.raises(PackError, match=r"run-0.tar.xz is not the file that was packed"):
        unpack_run(tmp_path / "pack", tmp_path / "there")
    part.unlink()
    with pytest.raises(PackError, match=r"run-0.tar.xz is missing"):
        unpack_run(tmp_path / "pack", tmp_path / "there")
    with pytest.raises(PackError, match="pack.json is missing"):
        unpack_run(tmp_path, tmp_path / "there")
    assert not (tmp_path / "there").exists()
