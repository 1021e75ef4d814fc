"""The trajectory store: exactness, crashes, damage, many readers."""

from __future__ import annotations

import errno
import os
import pickle
import random
import re
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from rollout.config import StoreConfig
from rollout.store import CorruptStoreError, Manifest, StoreError, TrajectoryStore
from rollout.trajectory_codec import decode_trajectory, encode_trajectory
from rollout.types import StopReason, ToolCall, Trajectory, Turn
from sandbox.types import Judgement, Outcome

CONFIG = StoreConfig(fsync=False, segment_mb=64)
LOG = "log-000000.bin"


def make_turn(rng: np.random.Generator, prompt: np.ndarray, *, num_tokens: int) -> Turn:
    return Turn(
        prompt_token_ids=prompt,
        token_ids=rng.integers(0, 1024, num_tokens).astype(np.int32),
        logprobs=-rng.exponential(size=num_tokens).astype(np.float32),
        policy_versions=np.full(num_tokens, 3, np.int32),
        text="a reply …",
        tool_calls=[ToolCall(name="bash", arguments={"command": "ls", "big": 10**40})],
        observations=["kernels\n", "\udcff not UTF-8"],
        judgement=Judgement(outcome=Outcome.WRONG, reward=-1.0, message="off by one", details={"largest": [0.1, 2]}),
    )


def make_trajectory(
    name: str = "stage1:0", *, stage: str = "stage1", seed: int = 0, num_turns: int = 3, num_tokens: int = 20
) -> Trajectory:
    rng = np.random.default_rng(seed)
    turns: list[Turn] = []
    prompt = rng.integers(0, 1024, 50).astype(np.int32)
    for _ in range(num_turns):
        turns.append(make_turn(rng, prompt, num_tokens=num_tokens))
        prompt = np.concatenate((prompt, turns[-1].token_ids, rng.integers(0, 1024, 7).astype(np.int32)))
    return Trajectory(
        trajectory_id=name,
        task_id="synthetic/1",
        sample_index=seed,
        stage=stage,
        seed=seed,
        turns=turns,
        judgement=Judgement(
            outcome=Outcome.CORRECT, reward=3.0, message="", candidate_ms=1.25, eager_ms=3.5, compile_ms=None
        ),
        stop_reason=StopReason.FINISHED,
        seconds=12.75,
    )


def assert_same(left: Trajectory, right: Trajectory) -> None:
    """Equal in every field; arrays in dtype, shape and bits (NaN included)."""
    for field in Trajectory.__dataclass_fields__:
        if field != "turns":
            assert getattr(left, field) == getattr(right, field), field
    assert len(left.turns) == len(right.turns)
    for ours, theirs in zip(left.turns, right.turns, strict=True):
        for field in Turn.__dataclass_fields__:
            mine, other = getattr(ours, field), getattr(theirs, field)
            if isinstance(mine, np.ndarray):
                assert (mine.dtype, mine.shape, mine.tobytes()) == (other.dtype, other.shape, other.tobytes()), field
            else:
                assert mine == other, field


def fill(path: Path, count: int) -> list[Trajectory]:
    trajectories = [make_trajectory(f"t{index}", seed=index) for index in range(count)]
    with TrajectoryStore(path, CONFIG) as store:
        for trajectory in trajectories:
            store.append(trajectory)
    return trajectories


def test_what_was_appended_is_read_back_exactly_by_another_opening(tmp_path: Path) -> None:
    trajectories = fill(tmp_path, 5)
    with TrajectoryStore(tmp_path, CONFIG) as store:
        for trajectory in trajectories:
            assert_same(store.get(trajectory.trajectory_id), trajectory)
        assert store.ids() == store.ids("stage1") == [trajectory.trajectory_id for trajectory in trajectories]
        assert [found.trajectory_id for found in store.trajectories("stage1")] == store.ids()
        assert list(store.trajectories("stage4")) == [] and len(store) == 5 and "t4" in store and "t5" not in store


tokens = hnp.arrays(np.int32, st.integers(0, 30))
json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=6,
)
any_text = st.text(st.characters(exclude_categories=()), max_size=40)  # lone surrogates too
judgements = st.builds(
    Judgement,
    outcome=st.sampled_from(Outcome),
    reward=st.none() | st.sampled_from([-1.0, 1.0, 2.0, 3.0]),
    message=any_text,
    candidate_ms=st.none() | st.floats(0, 1e6),
    details=st.dictionaries(st.text(max_size=5), json_values, max_size=3),
)
turns = st.builds(
    Turn,
    prompt_token_ids=tokens,
    token_ids=tokens,
    logprobs=hnp.arrays(np.float32, st.integers(0, 30)),
    policy_versions=tokens,
    text=any_text,
    tool_calls=st.lists(
        st.builds(
            ToolCall,
            name=any_text,
            error=st.none() | any_text,
            arguments=st.dictionaries(any_text, json_values, max_size=3),
        ),
        max_size=2,
    ),
    observations=st.lists(any_text, max_size=2),
    judgement=st.none() | judgements,
    truncated=st.booleans(),
    routing=st.none() | hnp.arrays(st.sampled_from([np.uint8, np.int16]), hnp.array_shapes(max_dims=3, max_side=4)),
)


@given(st.lists(turns, max_size=4), st.data())
@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large])
def test_any_trajectory_survives_the_codec_bit_for_bit(drawn: list[Turn], data: st.DataObject) -> None:
    chained: list[Turn] = []
    for turn in drawn:  # half of the prompts continue the dialogue, as real ones do; the rest do not
        if chained and data.draw(st.booleans()):
            prompt = np.concatenate((chained[-1].prompt_token_ids, chained[-1].token_ids, turn.prompt_token_ids))
            turn = Turn(
                **{name: getattr(turn, name) for name in Turn.__dataclass_fields__} | {"prompt_token_ids": prompt}
            )
        chained.append(turn)
    trajectory = Trajectory(
        trajectory_id="x",
        task_id="t",
        sample_index=1,
        stage="s",
        seed=2**70,
        turns=chained,
        judgement=data.draw(judgements),
        stop_reason=StopReason.MAX_TURNS,
        seconds=0.1,
    )
    assert_same(decode_trajectory(encode_trajectory(trajectory)), trajectory)


def test_prompts_of_a_dialogue_are_stored_as_increments() -> None:
    """A dialogue of n turns holds n(n+1)/2 increments in its prompts; stored, it grows with n alone."""
    short, long = (len(encode_trajectory(make_trajectory(num_turns=turns, num_tokens=200))) for turns in (4, 32))
    assert long < 1.2 * 8 * short


def test_a_long_dialogue_crosses_processes_and_lies_in_memory_as_increments() -> None:
    trajectory = make_trajectory(num_turns=150, num_tokens=200)
    whole = sum(turn.prompt_token_ids.nbytes for turn in trajectory.turns)
    sent = pickle.dumps(trajectory)
    assert len(sent) < 0.05 * whole
    received = pickle.loads(sent)
    assert_same(received, trajectory)
    buffers = {id(turn.prompt_token_ids.base) for turn in received.turns}
    assert len(buffers) == 1 and not received.turns[3].prompt_token_ids.flags.writeable


def test_a_record_costs_few_bytes_a_token() -> None:
    trajectory = make_trajectory(num_turns=8, num_tokens=250)
    sampled = sum(len(turn.token_ids) for turn in trajectory.turns)
    assert len(encode_trajectory(trajectory)) / sampled < 7.0  # 4 of them are the logprob, which does not compress


def test_a_trajectory_of_a_newer_schema_is_refused_by_name() -> None:
    newer = make_trajectory("later")
    object.__setattr__(newer, "schema_version", 99)
    with pytest.raises(ValueError, match="'later' has schema_version 99"):
        decode_trajectory(encode_trajectory(newer))


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
from tests.rollout.test_store import make_trajectory
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
