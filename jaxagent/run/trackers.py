"""Experiment trackers beside metrics.jsonl and TensorBoard: Weights & Biases and MLflow, where the config asks for it.

Both come with the extra `tracking`. A tracker is a convenience: one that fails is named, left out from then on, and the
run goes on; metrics.jsonl has everything.
"""

from __future__ import annotations

import importlib
import importlib.util
import logging
import math
import time
from collections.abc import Mapping
from typing import Any, Protocol

from jaxagent.config.load import ConfigError
from jaxagent.config.run import RunConfig, TrackingConfig
from jaxagent.run.folder import RunFolder, read_origin

logger = logging.getLogger(__name__)


class Tracker(Protocol):
    name: str

    def write(self, step: int, values: Mapping[str, float]) -> None:
        """`values` by `stage/metric`, at the step that counts the updates of all stages."""
        ...

    def close(self) -> None: ...


class Trackers:
    """All trackers of a run as one that never fails."""

    def __init__(self, trackers: list[Tracker]) -> None:
        self._trackers = trackers

    def write(self, stage: str, step: int, values: Mapping[str, Any]) -> None:
        """What is a finite number."""
        numbers = {
            f"{stage}/{name}": float(value)
            for name, value in values.items()
            if isinstance(value, int | float) and math.isfinite(value)
        }
        for tracker in list(self._trackers):
            try:
                tracker.write(step, numbers)
            except Exception as error:  # whatever a service, its client or the network thinks of
                logger.warning("%s failed and gets no more metrics of this run: %s", tracker.name, error)
                self._trackers.remove(tracker)

    def close(self) -> None:
        for tracker in self._trackers:
            try:
                tracker.close()
            except Exception as error:  # as in write
                logger.warning("%s was not closed in order: %s", tracker.name, error)


def check_tracking(config: TrackingConfig) -> None:
    """Raises ConfigError where a tracker that is asked for is not installed."""
    for name in ("wandb", "mlflow"):
        if getattr(config, name) and importlib.util.find_spec(name) is None:
            raise ConfigError(
                f"tracking.{name}=true: the package {name} is not installed; install the extra `tracking` "
                f"(pip install -e '.[tracking]'), or leave the key out"
            )


def start_trackers(config: RunConfig, folder: RunFolder) -> Trackers:
    """Those that the config asks for; a resumed run continues what it began there. One that can't start is left out."""
    started: list[Tracker] = []
    for wanted, make in ((config.tracking.wandb, WandbTracker), (config.tracking.mlflow, MlflowTracker)):
        if wanted:
            try:
                started.append(make(config, folder))
            except Exception as error:  # as in Trackers.write
                logger.warning("%s could not be started and gets no metrics of this run: %s", make.name, error)
    return Trackers(started)


class WandbTracker:
    """Its mode and key come from the environment, as W&B documents: WANDB_MODE=offline needs no network."""

    name = "Weights & Biases"

    def __init__(self, config: RunConfig, folder: RunFolder) -> None:
        wandb: Any = importlib.import_module("wandb")
        self._run = wandb.init(
            project=config.tracking.project,
            name=config.name,
            id=read_origin(folder)["id"],
            resume="allow",
            dir=str(folder.root),
            config=config.model_dump(mode="json"),
        )

    def write(self, step: int, values: Mapping[str, float]) -> None:
        self._run.log(dict(values), step=step)

    def close(self) -> None:
        self._run.finish()


class MlflowTracker:
    """Without an address of its own in tracking.mlflow_uri or MLFLOW_TRACKING_URI it writes into the run's folder."""

    name = "MLflow"

    def __init__(self, config: RunConfig, folder: RunFolder) -> None:
        mlflow: Any = importlib.import_module("mlflow")
        self._entities: Any = importlib.import_module("mlflow.entities")
        uri = config.tracking.mlflow_uri
        if uri is None and not mlflow.environment_variables.MLFLOW_TRACKING_URI.is_set():
            uri = f"sqlite:///{folder.root / 'mlflow.db'}"
        self._client = mlflow.MlflowClient(tracking_uri=uri)
        found = self._client.get_experiment_by_name(config.tracking.project)
        experiment = found.experiment_id if found else self._client.create_experiment(config.tracking.project)
        own = read_origin(folder)["id"]
        earlier = self._client.search_runs([experiment], f"tags.`jaxagent.id` = '{own}'")
        if earlier:
            self._run_id = earlier[0].info.run_id
        else:
            run = self._client.create_run(experiment, run_name=config.name, tags={"jaxagent.id": str(own)})
            self._run_id = run.info.run_id
            self._client.log_text(self._run_id, folder.config.read_text(), "config.yaml")

    def write(self, step: int, values: Mapping[str, float]) -> None:
        now = int(time.time() * 1000)
        metrics = [self._entities.Metric(name, value, now, step) for name, value in values.items()]
        self._client.log_batch(self._run_id, metrics=metrics)

    def close(self) -> None:
        self._client.set_terminated(self._run_id)
