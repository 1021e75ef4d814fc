"""No room on the disk: one paragraph with the next step, exit code 3, and nothing half-written."""

from __future__ import annotations

import errno
import os
import resource
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from jaxagent.cli.exits import FAILED
from jaxagent.files.disk import disk_full
from jaxagent.files.write import write_atomically
from jaxagent.learner.checkpoint import CheckpointError, Checkpoints
from jaxagent.run.folder import RunFolder
from jaxagent.run.metrics_log import MetricsLog, read_metrics

MIB = 1 << 20


def arrays(size: int) -> dict[str, np.ndarray]:
    return {"x": np.random.default_rng(0).normal(size=size // 8)}


def test_a_checkpoint_without_room_is_refused_and_the_one_before_stays(tmp_path, file_size_limit):
    checkpoints = Checkpoints(tmp_path)
    checkpoints.save(arrays(8000), {"i": 0})
    error = r"no room for checkpoint 1 of 8,000,000 bytes \(File too large\).*resume"
    with file_size_limit(MIB), pytest.raises(CheckpointError, match=error):
        checkpoints.save(arrays(8_000_000), {"i": 1})
    assert [path.name for path in tmp_path.iterdir()] == ["0"]
    assert checkpoints.record()["i"] == 0
    assert checkpoints.save(arrays(8_000_000), {"i": 1}) == 1
    np.testing.assert_array_equal(checkpoints.arrays(arrays(8_000_000))["x"], arrays(8_000_000)["x"])
    checkpoints.close()


def test_a_line_of_metrics_is_written_whole_or_not_at_all(tmp_path, file_size_limit):
    folder = RunFolder(tmp_path)
    log = MetricsLog(folder)
    log.write(stage="a", update=0, values={"reward": 1.0})
    size = folder.metrics.stat().st_size
    error = f"File too large: '{folder.metrics}'"
    with file_size_limit(size + 10), pytest.raises(OSError, match=error) as caught:
        log.write(stage="a", update=1, values={"reward": 2.0})
    assert caught.value.errno == errno.EFBIG
    assert folder.metrics.stat().st_size == size
    log.write(stage="a", update=1, values={"reward": 3.0})
    log.close()
    assert [record["reward"] for record in read_metrics(folder.metrics)] == [1.0, 3.0]


def test_tensorboards_file_without_room_raises_and_does_not_hang(tmp_path, file_size_limit):
    folder = RunFolder(tmp_path)
    log = MetricsLog(folder)
    (events,) = folder.tensorboard.iterdir()
    with file_size_limit(2000), pytest.raises(OSError, match="File too large"):
        for update in range(100):  # more than the queue of a writer with a thread of its own
            log.write(stage="a", update=update, values={f"metric_{index}": 1.0 for index in range(2)})
    log.close()
    assert events.stat().st_size <= 2000


def test_a_file_that_is_replaced_keeps_its_old_text(tmp_path, file_size_limit):
    path = tmp_path / "summary.json"
    write_atomically(path, "old")
    with file_size_limit(100), pytest.raises(OSError, match=f"File too large: '{path}'"):
        write_atomically(path, "new" * 1000)
    assert [(p.name, p.read_text()) for p in tmp_path.iterdir()] == [("summary.json", "old")]


def test_only_a_full_disk_is_called_one():
    assert disk_full(OSError(errno.ENOSPC, "x")) == os.strerror(errno.ENOSPC)
    assert disk_full(ValueError("Failed to write to file 11 [os_error_code='28']")) == os.strerror(errno.ENOSPC)
    assert disk_full(shutil.Error([("a", "b", "[Errno 28] No space left on device")])) == os.strerror(errno.ENOSPC)
    assert disk_full(OSError(errno.EACCES, "x")) is None
    assert disk_full(ValueError("[os_error_code='13']")) is None


def test_a_run_that_finds_no_room_for_its_folder_exits_with_3_and_leaves_none(tmp_path: Path):
    command = [sys.executable, "-m", "jaxagent", "train", "configs/smoke.yaml", "--runs_dir", str(tmp_path)]
    limited = subprocess.run(
        command,
        capture_output=True,
        text=True,
        preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (200, 200)),
        check=False,
        env=os.environ | {"PYTHONDONTWRITEBYTECODE": "1"},
    )
    assert limited.returncode == FAILED, limited.stderr
    assert "File too large" in limited.stderr and "free some space" in limited.stderr
    assert "Traceback" not in limited.stderr and len(limited.stderr.strip().splitlines()) == 1
    assert list(tmp_path.iterdir()) == []
