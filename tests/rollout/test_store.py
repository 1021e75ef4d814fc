"""The trajectory store: what it holds, what it refuses, and its many readers."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from stored import CONFIG, LOG, assert_same, fill, make_trajectory

from rollout.store import Manifest, StoreError, TrajectoryStore


def test_what_was_appended_is_read_back_exactly_by_another_opening(tmp_path: Path) -> None:
    trajectories = fill(tmp_path, 5)
    with TrajectoryStore(tmp_path, CONFIG) as store:
        for trajectory in trajectories:
            assert_same(store.get(trajectory.trajectory_id), trajectory)
        assert store.ids() == store.ids("stage1") == [trajectory.trajectory_id for trajectory in trajectories]
        assert [found.trajectory_id for found in store.trajectories("stage1")] == store.ids()
        assert list(store.trajectories("stage4")) == [] and len(store) == 5 and "t4" in store and "t5" not in store


def test_manifests_and_drops_survive_and_say_what_became_of_every_trajectory(tmp_path: Path) -> None:
    fill(tmp_path, 6)
    with TrajectoryStore(tmp_path, CONFIG) as store:
        first = store.append_manifest("stage1", 1, ["t0", "t1"], 0)
        store.append_manifest("rft", 1, ["t1"], 1)
        store.drop("t4", "stale")
        assert first == Manifest(stage="stage1", update=1, trajectory_ids=["t0", "t1"], policy_version=0)
    with TrajectoryStore(tmp_path, CONFIG, writable=False) as store:
        assert store.manifests("stage1") == [first] and [found.update for found in store.manifests()] == [1, 1]
        assert store.dropped() == store.dropped("stage1") == {"t4": "stale"} and store.dropped("rft") == {}
        audit = store.audit("stage1")
        assert (audit.accepted, audit.trained, audit.dropped) == (6, 2, 1)
        assert audit.twice == ["t1"] and audit.waiting == ["t2", "t3", "t5"]


def test_wrong_calls_are_refused_and_write_nothing(tmp_path: Path) -> None:
    fill(tmp_path, 3)
    with TrajectoryStore(tmp_path, CONFIG) as store:
        store.append_manifest("stage1", 1, ["t0"], 0)
        store.drop("t2", "stale")
        size = (tmp_path / LOG).stat().st_size
        with pytest.raises(ValueError, match="'t1' is in the store already"):
            store.append(make_trajectory("t1"))
        with pytest.raises(ValueError, match="update 1 of stage 'stage1' has its manifest already"):
            store.append_manifest("stage1", 1, ["t1"], 0)
        with pytest.raises(ValueError, match="'t7'.*not in the store"):
            store.append_manifest("stage1", 2, ["t0", "t7"], 0)
        with pytest.raises(ValueError, match="'t0'.*stand twice"):
            store.append_manifest("stage1", 2, ["t0", "t0"], 0)
        with pytest.raises(ValueError, match="was dropped already: stale"):
            store.drop("t2", "again")
        with pytest.raises(KeyError):
            store.get("t7")
        assert (tmp_path / LOG).stat().st_size == size


def test_a_second_writer_is_refused_and_readers_follow_the_first(tmp_path: Path) -> None:
    with TrajectoryStore(tmp_path, CONFIG) as store:
        store.append(make_trajectory("t0"))
        with pytest.raises(StoreError, match=f"being written by process {os.getpid()}"):
            TrajectoryStore(tmp_path, CONFIG)
        with TrajectoryStore(tmp_path, CONFIG, writable=False) as reader:
            assert reader.ids() == ["t0"]
            store.append(make_trajectory("t1"))
            assert reader.ids() == ["t0"]
            assert reader.refresh() == 1 and reader.ids() == ["t0", "t1"] and reader.refresh() == 0
            with pytest.raises(StoreError, match="open for reading only"):
                reader.append(make_trajectory("t2"))
    with TrajectoryStore(tmp_path, CONFIG) as store:
        store.append(make_trajectory("t2"))


def test_a_store_that_is_not_there_is_not_made_by_reading_it(tmp_path: Path) -> None:
    with pytest.raises(StoreError, match="no store here"):
        TrajectoryStore(tmp_path / "store", CONFIG, writable=False)
    assert not (tmp_path / "store").exists()
