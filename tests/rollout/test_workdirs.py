from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

from rollout.workdirs import remove_abandoned, temporary_workdir

LEAVES_ONE_BEHIND = """
import asyncio, os, signal, sys
from pathlib import Path
from rollout.workdirs import temporary_workdir

async def main():
    async with temporary_workdir(Path(sys.argv[1])) as workdir:
        workdir.mkdir()
        os.kill(os.getpid(), signal.SIGKILL)

asyncio.run(main())
"""


def age(folder: Path) -> None:
    os.utime(folder, (time.time() - 3600,) * 2)


async def test_a_workdir_is_removed_when_it_is_no_longer_needed(tmp_path: Path) -> None:
    async with temporary_workdir(tmp_path / "new") as workdir:
        (workdir / "kernels").mkdir(parents=True)
    assert list((tmp_path / "new").iterdir()) == []


async def test_what_a_killed_process_left_is_removed_and_what_is_in_use_stays(tmp_path: Path) -> None:
    killed = subprocess.run([sys.executable, "-c", LEAVES_ONE_BEHIND, str(tmp_path)], check=False)
    assert killed.returncode == -9
    (left,) = tmp_path.iterdir()
    assert remove_abandoned(tmp_path) == 0  # too young to be sure
    age(left)
    async with temporary_workdir(tmp_path) as workdir:
        age(workdir.parent)
        assert remove_abandoned(tmp_path) == 1
        assert list(tmp_path.iterdir()) == [workdir.parent]


def test_a_place_that_does_not_exist_has_nothing_to_remove(tmp_path: Path) -> None:
    assert remove_abandoned(tmp_path / "nowhere") == 0
