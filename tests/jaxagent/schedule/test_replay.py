"""What a resumed run replays, and that a log with a hole in it is refused before anything is trained."""

from __future__ import annotations

import pytest
from toys import random_trajectories

from jaxagent.schedule.replay import ReplayError, manifests_to_replay
from rollout.store import TrajectoryStore


@pytest.fixture
def store(tmp_path):
    with TrajectoryStore(tmp_path / "store") as store:
        for trajectory in random_trajectories(8):
            store.append(trajectory)
        yield store


def fill(store, updates, *, version=10):
    """A manifest of two trajectories for each update; the stage begins at policy version `version`."""
    names = store.ids()
    for place, update in enumerate(updates):
        store.append_manifest("s", update, names[2 * place : 2 * place + 2], version + update)


def test_what_follows_the_checkpoint_is_replayed_in_order_on_its_own_trajectories(store):
    fill(store, [0, 1, 2])
    replayed = manifests_to_replay(store, "s", updates_done=1, policy_version=11)
    assert [manifest.update for manifest in replayed] == [1, 2]
    assert replayed[0].trajectory_ids == store.ids()[2:4]
    assert manifests_to_replay(store, "s", updates_done=3, policy_version=13) == []
    assert manifests_to_replay(store, "another", updates_done=0, policy_version=0) == []


@pytest.mark.parametrize("updates", [[0, 2], [1, 2], [0, 1, 3]])
@pytest.mark.parametrize("done", [0, 1])
def test_a_gap_is_named(store, updates, done):
    fill(store, updates)
    missing = min(set(range(max(updates))) - set(updates))
    with pytest.raises(ReplayError, match=f"stage s: the log has no manifest of update {missing},.*restore"):
        manifests_to_replay(store, "s", updates_done=done, policy_version=10 + done)


def test_a_log_that_ends_before_the_checkpoint_is_refused(store):
    fill(store, [0, 1])
    with pytest.raises(ReplayError, match="checkpoint holds 3 updates and the log has manifests of 2"):
        manifests_to_replay(store, "s", updates_done=3, policy_version=13)


def test_a_checkpoint_of_another_version_is_refused(store):
    fill(store, [0, 1, 2])
    with pytest.raises(
        ReplayError, match="update 1 was made from policy version 11, and the checkpoint leads to .* 12"
    ):
        manifests_to_replay(store, "s", updates_done=1, policy_version=12)
