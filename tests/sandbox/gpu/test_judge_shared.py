"""Another process that uses the same GPU all the time stands still while the judge's clock runs."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import gpu_cases as cases
import pytest

from sandbox.config import JudgeConfig
from sandbox.judge.device import DeviceJudge
from sandbox.judge.local import make_device_judge
from sandbox.quiet import QuietLease
from sandbox.types import Artifact, DeviceError

pytestmark = pytest.mark.gpu

BUSY = """
import torch
a = torch.randn(4096, 4096, device="cuda")
while True:
    for _ in range(16):
        torch.mm(a, a)
    torch.cuda.synchronize()
    print("step", flush=True)
"""


@contextmanager
def busy(said: Path) -> Iterator[subprocess.Popen]:
    process = subprocess.Popen([sys.executable, "-c", BUSY], stdout=said.open("w"))
    while not said.stat().st_size:
        assert process.poll() is None
        time.sleep(0.05)
    yield process
    process.kill()
    process.wait()


@pytest.mark.parametrize("quiet", [True, False], ids=["with the lease", "without"])
def test_the_gpu_is_seen_at_rest_only_where_its_other_user_stands_still(folder, tmp_path, compiler, quiet):
    case, said, registry = cases.LINEAR_RELU, tmp_path / "steps", tmp_path / "quiet"
    artifact = compiler.compile("cuda", case.good).artifact
    settings = JudgeConfig(device="cuda", cores_per_device=2, quiet=quiet, baseline_dir=folder / "alone")
    judge = make_device_judge(settings, 0, registry)
    try:
        assert judge.judge(case.task, case.good, artifact, skill="cuda").details["turn"]["still"]
        with busy(said) as process:
            QuietLease(registry).register(process.pid)
            if quiet:
                judgement = judge.judge(case.task, case.good, artifact, skill="cuda")
                turn = judgement.details["turn"]
                assert judgement.accepted and turn["still"] and turn["frozen"] == 1, turn
                assert turn["settle_s"] < 1.0 and turn["seconds"] < 5.0, turn
            else:
                _is_disturbed(judge, case, artifact)
            steps = said.stat().st_size
            time.sleep(1.0)
            assert said.stat().st_size > steps  # it goes on
    finally:
        judge.close()


def _is_disturbed(judge: DeviceJudge, case: cases.Case, artifact: Artifact) -> None:
    """The times are refused, or at least said to be of a GPU at work."""
    try:
        judgement = judge.judge(case.task, case.good, artifact, skill="cuda")
    except DeviceError as error:
        assert "somebody else is at work on the GPU" in str(error)
    else:
        assert not judgement.details.get("turn", {"still": False})["still"]
