"""One GPU, its judge and the compile service, shared by the tests of a process."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import torch

from sandbox.compile import CompileService
from sandbox.config import CompileConfig, JudgeConfig
from sandbox.judge.device import DeviceJudge
from sandbox.judge.local import make_device_judge
from sandbox.types import Candidate, Judgement, Task

CORES = min(4, len(os.sched_getaffinity(0)))


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    if not torch.cuda.is_available():
        for item in items:
            if "gpu" in item.keywords:
                item.add_marker(pytest.mark.skip(reason="torch sees no CUDA device"))


@pytest.fixture(scope="session")
def folder(tmp_path_factory) -> Path:
    return tmp_path_factory.mktemp("gpu")


@pytest.fixture(scope="session")
def compiler() -> CompileService:
    return CompileService(CompileConfig(num_workers=4, timeout_s=300))


@pytest.fixture(scope="session")
def make_judge(folder: Path) -> Iterator[Callable[..., DeviceJudge]]:
    made: list[DeviceJudge] = []

    def make(**changed) -> DeviceJudge:
        settings = {"timeout_s": 30, "timed_rounds": 5} | changed
        config = JudgeConfig(
            device="cuda", cores_per_device=CORES, quiet=False, baseline_dir=folder / "baselines", **settings
        )
        made.append(make_device_judge(config, 0, folder / "quiet"))
        return made[-1]

    yield make
    for judge in made:
        judge.close()


@pytest.fixture(scope="session")
def device(make_judge) -> DeviceJudge:
    return make_judge()


@pytest.fixture
def judge(device: DeviceJudge, compiler: CompileService) -> Callable[..., Judgement]:
    """Judges past the rules for sources and symbols: what is tested here is what holds without them."""

    def run(
        task: Task, candidate: Candidate, *, timed: bool = False, on: DeviceJudge | None = None, skill: str = "cuda"
    ) -> Judgement:
        result = compiler.compile(skill, candidate)
        assert result.artifact is not None, result.message
        return (on or device).judge(task, candidate, result.artifact, skill=skill, timed=timed)

    return run
