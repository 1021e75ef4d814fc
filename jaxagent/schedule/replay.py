"""Which updates of a PPO stage a resumed run makes again, and whether the log still has all that they need."""

from __future__ import annotations

from rollout.store import Manifest, TrajectoryStore


class ReplayError(RuntimeError):
    """The log and the checkpoint of a run do not fit together, so its updates cannot be made again."""


def manifests_to_replay(
    store: TrajectoryStore, stage: str, *, updates_done: int, policy_version: int
) -> list[Manifest]:
    """The batches of updates `updates_done`, + 1, …, in that order; `policy_version` is the learner's now.

    Raises ReplayError unless the stage's manifests are those of updates 0, 1, 2, … without a gap, reach the
    checkpoint, start from the versions that the learner will have, and name trajectories that are in the log.
    """
    manifests = sorted(store.manifests(stage), key=lambda manifest: manifest.update)
    for expected, manifest in enumerate(manifests):
        if manifest.update != expected:
            raise ReplayError(
                f"stage {stage}: the log has no manifest of update {expected}, and one of update {manifest.update}; "
                f"{_NEXT_STEP}"
            )
    if len(manifests) < updates_done:
        raise ReplayError(
            f"stage {stage}: the checkpoint holds {updates_done} updates and the log has manifests of "
            f"{len(manifests)}: its end is missing; {_NEXT_STEP}"
        )
    replayed = manifests[updates_done:]
    for version, manifest in enumerate(replayed, start=policy_version):
        if manifest.policy_version != version:
            raise ReplayError(
                f"stage {stage}: update {manifest.update} was made from policy version {manifest.policy_version}, "
                f"and the checkpoint leads to version {version} there: log and checkpoint are of different runs; "
                f"{_NEXT_STEP}"
            )
        missing = [name for name in manifest.trajectory_ids if name not in store]
        if missing:
            raise ReplayError(
                f"stage {stage}: update {manifest.update} was made on {missing[0]} ({len(missing)} in all), which the "
                f"log does not hold; {_NEXT_STEP}"
            )
    return replayed


_NEXT_STEP = "restore the run's store/ and checkpoints/ from one and the same copy, or start a new run"
