"""Weights in shared memory: what is written, what is removed, and what happens when there is no room."""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import sys
import time
from pathlib import Path

import ml_dtypes
import numpy as np
import pytest
import safetensors

from rollout.packages import WeightsError, read_layout
from rollout.weights import WeightsWriter, remove_abandoned

ROOT = Path(__file__).parents[2]


def arrays(seed: int = 0) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(seed)
    return {
        "model.embed_tokens.weight": rng.normal(size=(64, 8)).astype(np.float32),
        "model.norm.weight": rng.normal(size=8).astype(ml_dtypes.bfloat16),
        "transposed": rng.normal(size=(4, 6)).astype(np.float32).T,
        "scalar": np.float32(3.5).reshape(()),
    }


def read(paths: list[str]) -> dict[str, np.ndarray]:
    found = {}
    for path in paths:
        with safetensors.safe_open(path, framework="numpy") as tensors:
            found |= {name: tensors.get_tensor(name) for name in tensors.keys()}  # noqa: SIM118 (not a mapping)
    return found


@pytest.mark.parametrize("max_file_bytes", [1 << 30, 300])
def test_a_package_holds_every_array_bit_for_bit_and_says_what_its_bytes_are(
    tmp_path: Path, max_file_bytes: int
) -> None:
    writer = WeightsWriter(directory=tmp_path, max_file_bytes=max_file_bytes)
    package = writer.write(arrays().items(), version=3)
    assert package.version == 3 and len(package.files) == (1 if max_file_bytes > 300 else 2)
    for file in package.files:
        data = Path(file.path).read_bytes()
        assert (len(data), hashlib.sha256(data).hexdigest()) == (file.num_bytes, file.sha256)
    found = read([file.path for file in package.files])
    for name, array in arrays().items():
        assert (found[name].dtype, found[name].shape) == (array.dtype, array.shape)
        assert found[name].tobytes() == array.tobytes()
    assert read_layout(file.path for file in package.files) == {name: array.shape for name, array in arrays().items()}
    writer.close()


def test_packages_that_differ_in_one_bit_have_other_digests(tmp_path: Path) -> None:
    writer = WeightsWriter(directory=tmp_path)
    changed = arrays()
    changed["model.embed_tokens.weight"].view(np.uint32)[0, 0] ^= 1
    digests = {
        writer.write(weights.items(), version=version).checksum
        for version, weights in enumerate((arrays(), arrays(), changed))
    }
    assert len(digests) == 2
    writer.close()


def test_only_the_last_packages_are_kept_and_closing_removes_all(tmp_path: Path) -> None:
    writer = WeightsWriter(directory=tmp_path, keep=2)
    packages = [writer.write(arrays(version).items(), version=version) for version in (1, 2, 3, 3)]
    assert [Path(package.files[0].path).exists() for package in packages] == [False, False, True, True]
    writer.close()
    writer.close()
    assert list(tmp_path.iterdir()) == []


def test_what_a_killed_writer_left_is_removed_and_what_a_living_one_holds_is_not(tmp_path: Path) -> None:
    script = (
        f"import os; from rollout.weights import WeightsWriter; from tests.rollout.test_weights import arrays\n"
        f"WeightsWriter(directory={str(tmp_path)!r}).write(arrays().items(), version=1); os.kill(os.getpid(), 9)"
    )
    assert subprocess.run([sys.executable, "-c", script], cwd=ROOT).returncode == -9
    (abandoned,) = tmp_path.iterdir()
    writer = WeightsWriter(directory=tmp_path)
    long_ago = time.time() - 3600
    assert abandoned.exists(), "a young folder may belong to a writer that is just starting"
    for folder in tmp_path.iterdir():
        os.utime(folder, (long_ago, long_ago))
    assert remove_abandoned(tmp_path) == 1
    assert not abandoned.exists() and writer.folder.exists()
    writer.close()


@pytest.mark.parametrize(
    ("named", "message"),
    [
        ([], "version 5 has no weights"),
        ([("a", np.zeros(3)), ("a", np.ones(3))], "'a' comes twice"),
    ],
)
def test_a_package_that_cannot_be_right_is_refused(tmp_path: Path, named, message: str) -> None:
    writer = WeightsWriter(directory=tmp_path)
    with pytest.raises(WeightsError, match=message):
        writer.write(named, version=5)
    assert [path.name for path in writer.folder.iterdir()] == ["lock"]
    writer.close()


def test_a_source_that_fails_halfway_leaves_no_files(tmp_path: Path) -> None:
    def source():
        yield "a", np.zeros(100, np.float32)
        yield "b", np.zeros(100, np.float32)
        raise RuntimeError("the device is gone")

    writer = WeightsWriter(directory=tmp_path, max_file_bytes=400)
    with pytest.raises(RuntimeError, match="the device is gone"):
        writer.write(source(), version=1)
    assert [path.name for path in writer.folder.iterdir()] == ["lock"]
    writer.close()


@pytest.mark.parametrize("data", [b"", b"short", bytes(64), b"\xff" * 64])
def test_a_file_that_is_no_safetensors_file_is_named(tmp_path: Path, data: bytes) -> None:
    (tmp_path / "x.safetensors").write_bytes(data)
    with pytest.raises(WeightsError, match=r"x\.safetensors is not a safetensors file"):
        read_layout([tmp_path / "x.safetensors"])


@pytest.mark.skipif(os.geteuid() != 0 or shutil.which("mount") is None, reason="mounting a small disk needs root")
def test_full_shared_memory_is_named_and_nothing_stays_half_written(tmp_path: Path) -> None:
    if subprocess.run(["mount", "-t", "tmpfs", "-o", "size=1m", "tmpfs", tmp_path], capture_output=True).returncode:
        pytest.skip("mounting is not allowed here")
    try:
        writer = WeightsWriter(directory=tmp_path, max_file_bytes=600_000)
        named = [(f"w{index}", np.zeros(100_000, np.float32)) for index in range(4)]
        with pytest.raises(WeightsError, match="is full: version 1 needs .* --shm-size"):
            writer.write(named, version=1)
        assert [path.name for path in writer.folder.iterdir()] == ["lock"]
        writer.write(named[:1], version=2)
        writer.close()
    finally:
        subprocess.run(["umount", tmp_path], check=True)
