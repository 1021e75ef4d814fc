"""The learner of a run's folder: what a resume makes good."""

from __future__ import annotations

import shutil
from pathlib import Path

import jax
import pytest

from jaxagent.config.load import load_config
from jaxagent.learner import service as learner_service
from jaxagent.learner.actor import learner_environment
from jaxagent.learner.service import LearnerService
from jaxagent.run.folder import create_run
from jaxagent.run.fork import stage_end_checkpoint


@pytest.fixture
def own_cache(tmp_path, monkeypatch):
    before = jax.config.jax_compilation_cache_dir
    monkeypatch.setattr(learner_service, "COMPILATION_CACHE", tmp_path / "xla")
    yield
    jax.config.update("jax_compilation_cache_dir", before)


@pytest.mark.parametrize(
    ("overrides", "expected"),
    [
        ([], {"JAX_PLATFORMS": "cpu"}),
        (["--gpus.learner=0.4"], {"XLA_PYTHON_CLIENT_PREALLOCATE": "false"}),
        (
            ["--gpus.learner=1", "--gpus.learner_memory=0.3"],
            {"XLA_PYTHON_CLIENT_MEM_FRACTION": "0.3"},
        ),
    ],
)
def test_the_learner_takes_a_gpu_only_where_it_has_a_share_and_all_that_is_its_own_at_once(overrides, expected):
    assert learner_environment(load_config(Path("configs/smoke.yaml"), overrides)) == expected


@pytest.mark.usefixtures("own_cache")
def test_the_copy_of_a_stages_end_that_a_kill_prevented_is_made_by_the_resume(tmp_path):
    config = load_config(Path("configs/smoke.yaml"), ["--runs_dir", str(tmp_path)])
    folder = create_run(config)
    service = LearnerService(config, str(folder.root))
    assert service.restore() is None
    record = {"stage": 1, "name": "supervised", "updates": 2}
    service.save({**record, "complete": False})
    assert stage_end_checkpoint(folder, "supervised") is None
    number = service.save({**record, "complete": True})
    service.close()
    kept = stage_end_checkpoint(folder, "supervised")
    assert kept is not None and kept.name == str(number)
    shutil.rmtree(kept)

    resumed = LearnerService(config, str(folder.root))
    assert resumed.restore() == {**record, "complete": True}
    resumed.close()
    assert stage_end_checkpoint(folder, "supervised") == kept
