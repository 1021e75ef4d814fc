"""Crashes, damage and full disks: what of a store survives them, and what is said."""

from __future__ import annotations

import errno
import os
import random
import re
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from stored import CONFIG, LOG, assert_same, fill, make_trajectory

from rollout.config import StoreConfig
from rollout.store import CorruptStoreError, StoreError, TrajectoryStore


@pytest.mark.parametrize("last", ["a trajectory", "a manifest"])
def test_a_tail_torn_at_any_byte_costs_only_the_last_record(tmp_path: Path, last: str) -> None:
    first, second = fill(tmp_path / "whole", 2)
    start = (tmp_path / "whole" / LOG).stat().st_size
    third = make_trajectory("t2", num_turns=1, num_tokens=3)

    def append_last(store: TrajectoryStore) -> None:
        if last == "a trajectory":
            store.append(third)
        else:
            store.append_manifest("stage1", 1, ["t0"], 0)

    with TrajectoryStore(tmp_path / "whole", CONFIG) as store:
        append_last(store)
    data = (tmp_path / "whole" / LOG).read_bytes()
    for length in range(start, len(data)):
        torn = tmp_path / "torn"
        torn.mkdir()
        (torn / LOG).write_bytes(data[:length])
        with TrajectoryStore(torn, CONFIG, writable=False) as reader:
            assert reader.ids() == ["t0", "t1"] and reader.manifests() == []
        assert (torn / LOG).stat().st_size == length, "a reader must not change the log"
        with TrajectoryStore(torn, CONFIG) as store:
            assert_same(store.get("t0"), first)
            assert_same(store.get("t1"), second)
            append_last(store)
        assert (torn / LOG).read_bytes() == data
        shutil.rmtree(torn)


@pytest.mark.parametrize("length", range(0, 17))
def test_a_segment_torn_in_its_own_header_is_begun_again(tmp_path: Path, length: int) -> None:
    fill(tmp_path, 0)
    header = (tmp_path / LOG).read_bytes()
    (tmp_path / LOG).write_bytes(header[:length])
    fill(tmp_path, 1)
    with TrajectoryStore(tmp_path, CONFIG) as store:
        assert store.ids() == ["t0"]


def test_a_flipped_byte_before_the_last_record_is_an_error_wherever_it_is(tmp_path: Path) -> None:
    fill(tmp_path, 1)
    end = (tmp_path / LOG).stat().st_size
    with TrajectoryStore(tmp_path, CONFIG) as store:
        store.append(make_trajectory("t1"))
    data = (tmp_path / LOG).read_bytes()
    for position in random.Random(0).sample(range(end), 150) + list(range(40)):
        damaged = bytearray(data)
        damaged[position] ^= 1 << (position % 8)
        (tmp_path / LOG).write_bytes(damaged)
        for writable in (True, False):
            with pytest.raises(CorruptStoreError, match=rf"{LOG} is damaged at byte \d+"):
                TrajectoryStore(tmp_path, CONFIG, writable=writable)
        assert (tmp_path / LOG).read_bytes() == damaged, "a damaged log must be left as it is"


def test_earlier_segments_are_checked_when_read_or_verified(tmp_path: Path) -> None:
    config = StoreConfig(fsync=False, segment_mb=1)
    with TrajectoryStore(tmp_path, config) as store:
        for index in range(50):
            store.append(make_trajectory(f"t{index}", seed=index, num_turns=4, num_tokens=4000))
        assert len(list(tmp_path.glob("log-*.bin"))) > 2
        assert store.verify() == 50
    with TrajectoryStore(tmp_path, config) as store:
        assert len(store) == 50
        assert_same(store.get("t3"), make_trajectory("t3", seed=3, num_turns=4, num_tokens=4000))
    data = bytearray((tmp_path / LOG).read_bytes())
    data[2000] ^= 1  # in the payload of t0
    (tmp_path / LOG).write_bytes(data)
    with TrajectoryStore(tmp_path, config) as store:
        assert store.get("t1").seed == 1
        with pytest.raises(CorruptStoreError, match="damaged"):
            store.get("t0")
        with pytest.raises(CorruptStoreError, match="damaged"):
            store.verify()
    (tmp_path / LOG).write_bytes(data[:-1])
    with pytest.raises(CorruptStoreError, match="damaged"):
        TrajectoryStore(tmp_path, config)
    (tmp_path / LOG).unlink()
    with pytest.raises(CorruptStoreError, match="missing"):
        TrajectoryStore(tmp_path, config)


WRITER = """
import sys
from rollout.config import StoreConfig
from rollout.store import TrajectoryStore
from tests.rollout.stored import make_trajectory
with TrajectoryStore(sys.argv[1], StoreConfig(fsync=False, segment_mb=1)) as store:
    for index in range(len(store), 100_000):
        store.append(make_trajectory(f"t{index}", seed=index, num_tokens=1500))
        print(index, flush=True)
"""


def test_a_writer_killed_at_any_moment_loses_nothing_it_acknowledged(tmp_path: Path) -> None:
    rng = random.Random(0)
    acknowledged = -1
    for _ in range(4):
        writer = subprocess.Popen(
            [sys.executable, "-c", WRITER, str(tmp_path)],
            stdout=subprocess.PIPE,
            text=True,
            cwd=Path(__file__).parents[2],
        )
        assert writer.stdout is not None
        assert int(writer.stdout.readline()) == acknowledged + 1  # the lock is free, and numbering goes on
        time.sleep(rng.random() * 0.3)
        writer.send_signal(signal.SIGKILL)
        acknowledged = max([acknowledged + 1, *map(int, writer.stdout.read().split())])
        writer.wait()
        writer.stdout.close()
        with TrajectoryStore(tmp_path, CONFIG, writable=False) as store:
            names = store.ids()
            assert names == [f"t{index}" for index in range(len(names))]
            assert acknowledged + 1 <= len(names) <= acknowledged + 2  # written, and killed before it could say so
            acknowledged = len(names) - 1
    with TrajectoryStore(tmp_path, CONFIG) as store:
        assert store.verify() == acknowledged + 1
        for index in (0, acknowledged):
            assert_same(store.get(f"t{index}"), make_trajectory(f"t{index}", seed=index, num_tokens=1500))


def test_no_room_is_a_clear_error_and_leaves_nothing_half_written(tmp_path: Path, file_size_limit) -> None:
    with TrajectoryStore(tmp_path, StoreConfig(fsync=True, segment_mb=64)) as store:
        store.append(make_trajectory("t0"))
        size = (tmp_path / LOG).stat().st_size
        error = "no room for a record of .* Free some space"
        with file_size_limit(size + 100), pytest.raises(StoreError, match=error) as caught:
            store.append(make_trajectory("t1"))
        assert caught.value.errno == errno.EFBIG
        assert (tmp_path / LOG).stat().st_size == size and store.ids() == ["t0"]
        store.append(make_trajectory("t1"))
    with TrajectoryStore(tmp_path, CONFIG) as store:
        assert store.ids() == ["t0", "t1"]


@pytest.mark.skipif(os.geteuid() != 0 or shutil.which("mount") is None, reason="mounting a small disk needs root")
def test_a_full_disk_is_named_and_the_store_goes_on_once_there_is_room(tmp_path: Path) -> None:
    disk = tmp_path / "disk"
    disk.mkdir()
    if subprocess.run(["mount", "-t", "tmpfs", "-o", "size=64k", "tmpfs", disk], capture_output=True).returncode:
        pytest.skip("mounting is not allowed here")
    try:
        (disk / "ballast").write_bytes(bytes(32_768))
        with TrajectoryStore(disk / "store", CONFIG) as store:
            with pytest.raises(StoreError, match=re.escape("No space left on device")):
                for index in range(1000):
                    store.append(make_trajectory(f"t{index}", seed=index))
            accepted = len(store)
            (disk / "ballast").unlink()
            store.append(make_trajectory("after"))
        with TrajectoryStore(disk / "store", CONFIG) as store:
            assert store.verify() == accepted + 1 and store.ids()[-1] == "after"
    finally:
        subprocess.run(["umount", disk], check=True)
