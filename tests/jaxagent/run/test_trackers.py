"""Weights & Biases and MLflow without a network; a tracker that fails costs the run nothing."""

from __future__ import annotations

import importlib.util
import logging
import math
import sys
from collections.abc import Mapping
from pathlib import Path

import pytest

from jaxagent.commands.preflight import check_inputs
from jaxagent.config.load import ConfigError, load_config
from jaxagent.run.folder import RunFolder, create_run
from jaxagent.run.metrics_log import MetricsLog, read_metrics
from jaxagent.run.trackers import MlflowTracker, Trackers, start_trackers


class Kept:
    """A tracker that keeps what it gets, and fails when it is told to."""

    name = "kept"

    def __init__(self) -> None:
        self.rows: list[tuple[int, dict[str, float]]] = []
        self.closed = self.fails = False

    def write(self, step: int, values: Mapping[str, float]) -> None:
        if self.fails:
            raise ConnectionError("the service is away")
        self.rows.append((step, dict(values)))

    def close(self) -> None:
        self.closed = True


def run_folder(tmp_path: Path, *overrides: str) -> RunFolder:
    return create_run(load_config(Path("configs/demo.yaml"), [f"--runs_dir={tmp_path}", *overrides]))


def test_trackers_get_every_finite_number_by_stage_and_step(tmp_path: Path):
    kept = Kept()
    log = MetricsLog(run_folder(tmp_path), Trackers([kept]))
    log.write(stage="rft", update=0, values={"nll": 1.5, "text": "no number", "gone": math.nan})
    log.write(stage="agentic", update=0, values={"mean_reward": 2})
    log.close()
    assert kept.rows == [(0, {"rft/nll": 1.5}), (1, {"agentic/mean_reward": 2.0})] and kept.closed


def test_a_tracker_that_fails_is_named_and_left_out_and_the_run_goes_on(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
):
    away, kept, folder = Kept(), Kept(), run_folder(tmp_path)
    away.fails = True
    log = MetricsLog(folder, Trackers([away, kept]))
    with caplog.at_level(logging.WARNING):
        log.write(stage="s", update=0, values={"x": 1.0})
        log.write(stage="s", update=1, values={"x": 2.0})
    log.close()
    assert caplog.text.count("kept failed and gets no more metrics of this run: the service is away") == 1
    assert len(kept.rows) == len(list(read_metrics(folder.metrics))) == 2 and not away.closed


def test_a_tracker_that_is_not_installed_is_refused_before_the_run(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(ConfigError, match="tracking.wandb=true: the package wandb is not installed; install the extra"):
        check_inputs(load_config(Path("configs/demo.yaml"), ["--tracking.wandb=true"]))


@pytest.mark.skipif(importlib.util.find_spec("wandb") is None, reason="wandb is not installed: extra `tracking`")
@pytest.mark.filterwarnings("ignore")
def test_wandb_offline_writes_into_the_folder_of_the_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("WANDB_MODE", "offline")
    monkeypatch.setenv("WANDB_SILENT", "true")
    folder = run_folder(tmp_path)
    config = load_config(folder.config, ["--tracking.wandb=true"])
    log = MetricsLog(folder, start_trackers(config, folder))
    log.write(stage="agentic", update=0, values={"mean_reward": 2.25})
    log.close()
    (record,) = folder.root.glob("wandb/offline-run-*/run-*.wandb")
    assert b"agentic/mean_reward" in record.read_bytes()


@pytest.mark.skipif(importlib.util.find_spec("mlflow") is None, reason="mlflow is not installed: extra `tracking`")
@pytest.mark.filterwarnings("ignore")
def test_mlflow_keeps_one_run_also_when_ours_is_resumed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    folder = run_folder(tmp_path)
    config = load_config(folder.config, ["--tracking.mlflow=true"])
    for update in range(2):  # the second one is a resumed run
        log = MetricsLog(folder, start_trackers(config, folder))
        log.write(stage="agentic", update=update, values={"mean_reward": 1.0 + update})
        log.close()
    assert "mlflow" in sys.modules and (folder.root / "mlflow.db").exists()
    client = MlflowTracker(config, folder)._client
    (run,) = client.search_runs([client.get_experiment_by_name("jaxagent").experiment_id])
    history = client.get_metric_history(run.info.run_id, "agentic/mean_reward")
    assert [(entry.step, entry.value) for entry in history] == [(0, 1.0), (1, 2.0)]
    assert run.info.run_name == "demo" and run.info.status == "FINISHED"
