"""What a resumed run knows of the stages behind it."""

from __future__ import annotations

import dataclasses

from toys import random_trajectories

from jaxagent.config.stages import SampleStage
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
