"""The trajectory store: the one record of what was rolled out, what was trained on, and what was dropped.

Append-only. A trajectory is accepted once `append` returns; before an update its manifest is appended, so a resumed run
repeats exactly the updates that followed its checkpoint. See record_log.py for what survives a crash.
"""

from __future__ import annotations

import errno
import json
import threading
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from types import TracebackType
from typing import Self

from rollout.config import StoreConfig
from rollout.record_format import Entry
from rollout.record_log import CorruptStoreError, RecordLog, StoreError
from rollout.trajectory_codec import decode_trajectory, encode_trajectory
from rollout.types import Trajectory

__all__ = ["CorruptStoreError", "Manifest", "StoreAudit", "StoreError", "TrajectoryStore"]

_TRAJECTORY, _MANIFEST, _DROP = 1, 2, 3


@dataclass(frozen=True, slots=True, kw_only=True)
class Manifest:
    """The batch of one update, written before the update. `policy_version` is the one that the update starts from."""

    stage: str
    update: int
    trajectory_ids: list[str]
    policy_version: int


@dataclass(frozen=True, slots=True, kw_only=True)
class StoreAudit:
    """Trajectories of one stage by what became of them."""

    accepted: int
    trained: int
    dropped: int
    twice: list[str]
    """In two manifests: trained on twice."""
    waiting: list[str]
    """In no manifest and not dropped: lost, once the stage has ended."""


class TrajectoryStore:
    """A folder of log segments. One process writes, any number read (`writable=False`) and `refresh`.

    Methods may be called from several threads.
    """

    def __init__(self, path: str | Path, config: StoreConfig | None = None, *, writable: bool = True) -> None:
        """Opens or creates; cuts off a record that a killed writer left unfinished.

        Raises StoreError (another writer, no such store, disk) and CorruptStoreError.
        """
        config = config or StoreConfig()
        self._log = RecordLog(path, writable=writable, fsync=config.fsync, segment_bytes=config.segment_mb << 20)
        self._lock = threading.RLock()
        self._trajectories: dict[str, Entry] = {}
        self._stages: dict[str, list[str]] = {}
        self._manifests: dict[tuple[str, int], Manifest] = {}
        self._drops: dict[str, str] = {}
        try:
            self.refresh()
        except BaseException:
            self._log.close()
            raise

    def append(self, trajectory: Trajectory) -> None:
        """Accepts a trajectory. Raises ValueError if its id is known, StoreError if it cannot be written."""
        key = json.dumps([trajectory.trajectory_id, trajectory.stage]).encode()
        with self._lock:
            if trajectory.trajectory_id in self._trajectories:
                raise ValueError(f"trajectory {trajectory.trajectory_id!r} is in the store already; ids are given once")
            self._index(self._log.append(_TRAJECTORY, key, encode_trajectory(trajectory)))

    def append_manifest(self, stage: str, update: int, trajectory_ids: Sequence[str], policy_version: int) -> Manifest:
        """Records the batch of one update, before it is made.

        Raises ValueError if (stage, update) has one, or ids are unknown or repeated; StoreError as `append`.
        """
        manifest = Manifest(
            stage=stage, update=update, trajectory_ids=list(trajectory_ids), policy_version=policy_version
        )
        with self._lock:
            if (stage, update) in self._manifests:
                raise ValueError(f"update {update} of stage {stage!r} has its manifest already: replay that one")
            self._check_known(manifest.trajectory_ids)
            repeated = [name for name, count in Counter(manifest.trajectory_ids).items() if count > 1]
            if repeated:
                raise ValueError(f"update {update} of stage {stage!r}: {repeated[:3]} stand twice in one manifest")
            self._append_manifest(manifest)
        return manifest

    def drop(self, trajectory_id: str, reason: str) -> None:
        """Records that an accepted trajectory will not be trained on. Raises ValueError if it is unknown or dropped."""
        with self._lock:
            self._check_known([trajectory_id])
            if trajectory_id in self._drops:
                raise ValueError(f"trajectory {trajectory_id!r} was dropped already: {self._drops[trajectory_id]}")
            record = {"trajectory_id": trajectory_id, "reason": reason}
            self._index(self._log.append(_DROP, b"", json.dumps(record).encode()))

    def get(self, trajectory_id: str) -> Trajectory:
        """Raises KeyError, CorruptStoreError."""
        with self._lock:
            entry = self._trajectories[trajectory_id]
        return decode_trajectory(self._log.read(entry))

    def trajectories(self, stage: str | None = None) -> Iterator[Trajectory]:
        """Those stored when iteration begins, in order of acceptance, read one at a time."""
        for trajectory_id in self.ids(stage):
            yield self.get(trajectory_id)

    def ids(self, stage: str | None = None) -> list[str]:
        """In order of acceptance."""
        with self._lock:
            return list(self._trajectories) if stage is None else list(self._stages.get(stage, []))

    def manifests(self, stage: str | None = None) -> list[Manifest]:
        """In the order they were appended."""
        with self._lock:
            return [manifest for manifest in self._manifests.values() if stage in (None, manifest.stage)]

    def dropped(self, stage: str | None = None) -> dict[str, str]:
        """Reason by trajectory id."""
        with self._lock:
            if stage is None:
                return dict(self._drops)
            return {name: self._drops[name] for name in self._stages.get(stage, []) if name in self._drops}

    def audit(self, stage: str) -> StoreAudit:
        """What became of a stage's trajectories, going by all manifests; for a stage of PPO each should be in one."""
        uses = Counter(name for manifest in self.manifests() for name in manifest.trajectory_ids)
        names, drops = self.ids(stage), self.dropped(stage)
        return StoreAudit(
            accepted=len(names),
            trained=sum(name in uses for name in names),
            dropped=len(drops),
            twice=[name for name in names if uses[name] > 1],
            waiting=[name for name in names if name not in uses and name not in drops],
        )

    def refresh(self) -> int:
        """Takes in what another process appended since; returns how many records. For a writer there is nothing."""
        with self._lock:
            entries = list(self._log.scan())
            for entry in entries:
                self._index(entry)
            return len(entries)

    def copy_to(
        self,
        path: str | Path,
        config: StoreConfig | None = None,
        *,
        stages: Collection[str] | None = None,
        keep: Callable[[str], bool] = lambda _: True,
    ) -> None:
        """Makes a store at `path`: of `stages` (None: all) the manifests, and of the trajectories, with what was said
        of their being dropped, those whose id `keep` takes. A manifest may then name trajectories that are not there.
        """
        with self._lock, TrajectoryStore(path, config) as target:
            for stage, names in self._stages.items():
                for name in names if stages is None or stage in stages else []:
                    if keep(name):
                        entry = self._trajectories[name]
                        target._index(target._log.append(entry.kind, entry.key, self._log.read(entry)))
                        if name in self._drops:
                            target.drop(name, self._drops[name])
            for manifest in self._manifests.values():
                if stages is None or manifest.stage in stages:
                    target._append_manifest(manifest)

    def verify(self) -> int:
        """Reads and checks every byte; returns the number of records. Raises CorruptStoreError."""
        with self._lock:
            return self._log.verify()

    def close(self) -> None:
        """Safe to call twice."""
        with self._lock:
            self._log.close()

    def __len__(self) -> int:
        return len(self._trajectories)

    def __contains__(self, trajectory_id: object) -> bool:
        return trajectory_id in self._trajectories

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    def _append_manifest(self, manifest: Manifest) -> None:
        self._index(self._log.append(_MANIFEST, b"", json.dumps(asdict(manifest)).encode()))

    def _check_known(self, trajectory_ids: list[str]) -> None:
        unknown = [name for name in trajectory_ids if name not in self._trajectories]
        if unknown:
            raise ValueError(
                f"{unknown[:3]} ({len(unknown)} in all) are not in the store {self._log.folder}: "
                f"append a trajectory before it is named"
            )

    def _index(self, entry: Entry) -> None:
        if entry.kind == _TRAJECTORY:
            trajectory_id, stage = json.loads(entry.key)
            self._trajectories[trajectory_id] = entry
            self._stages.setdefault(stage, []).append(trajectory_id)
        elif entry.kind == _MANIFEST:
            manifest = Manifest(**json.loads(self._log.read(entry)))
            self._manifests[manifest.stage, manifest.update] = manifest
        elif entry.kind == _DROP:
            record = json.loads(self._log.read(entry))
            self._drops[record["trajectory_id"]] = record["reason"]
        else:
            raise StoreError(
                errno.EPROTO,
                f"{self._log.folder} holds a record of kind {entry.kind}, which this "
                f"program does not know: use the version that wrote the run, or a newer one",
            )
