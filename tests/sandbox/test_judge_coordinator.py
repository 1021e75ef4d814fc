"""JudgeCoordinator over real compiles and a real device, and its retries over devices that fail."""

from __future__ import annotations

import asyncio
import subprocess
from collections.abc import AsyncIterator
from pathlib import Path

import judge_cases as cases
import pytest

from sandbox.config import CompileConfig, JudgeConfig
from sandbox.judge.coordinator import JudgeCoordinator
from sandbox.judge.local import LocalJudge
from sandbox.judge.spec import device_cores
from sandbox.pool import ProfilerPool
from sandbox.quiet import QuietLease
from sandbox.types import Artifact, Candidate, CompileResult, DeviceError, Judgement, Outcome

ARTIFACT = Artifact(sha256="0", arch="x86_64-native", shared_object=b"")


@pytest.fixture
async def local(tmp_path: Path) -> AsyncIterator[LocalJudge]:
    judge = LocalJudge(
        JudgeConfig(baseline_dir=cases.baseline_dir(tmp_path), timed_rounds=5),
        CompileConfig(cache_dir=tmp_path / "compile"),
        registry_dir=tmp_path / "quiet",
    )
    yield judge
    await judge.close()


async def test_the_same_candidate_is_judged_once_even_while_it_is_under_way(local):
    first, second = await asyncio.gather(
        *(local.judge(cases.CHAIN_TASK, cases.HONEST, skill="cpp", timed=False) for _ in range(2))
    )
    third = await local.judge(cases.CHAIN_TASK, cases.HONEST, skill="cpp", timed=False)
    assert first is second is third and first.accepted
    stats = local.stats()
    assert stats["judged"] == 1 and stats["deduplicated"] == 2 and stats["outcome_correct"] == 1


async def test_baselines_can_be_measured_ahead_and_registered_processes_stand_still_under_the_clock(local, tmp_path):
    said = []
    times = await local.prepare(
        [cases.CHAIN_TASK, cases.AFFINE_TASK], lambda done, total, text: said.append((done, total))
    )
    assert said == [(1, 2), (2, 2)] and set(times) == {"chain", "affine"}
    assert all(eager_ms > 0 and compile_ms > 0 for eager_ms, compile_ms in times.values())
    sleeper = subprocess.Popen(["sleep", "300"])
    try:
        QuietLease(tmp_path / "quiet").register(sleeper.pid)
        judging = asyncio.create_task(local.judge(cases.CHAIN_TASK, cases.HONEST, skill="cpp"))
        states = set()
        while not judging.done():
            states.add(Path(f"/proc/{sleeper.pid}/stat").read_text().rpartition(")")[2].split()[0])
            await asyncio.sleep(0.002)
        judgement = await judging
        assert judgement.reward in (1, 2, 3) and judgement.details["compile_cached"] is False
        assert "T" in states
        await asyncio.sleep(0.1)
        assert Path(f"/proc/{sleeper.pid}/stat").read_text().rpartition(")")[2].split()[0] == "S"
    finally:
        sleeper.kill()
        sleeper.wait()


async def test_compile_errors_and_static_refusals_need_no_device(local):
    broken = cases.candidate(cases.chain_model("return x"), chain="this is not C++")
    judgement = await local.judge(cases.CHAIN_TASK, broken, skill="cpp")
    assert judgement.outcome is Outcome.COMPILE_ERROR and judgement.reward == -1
    forbidden = cases.candidate("import os\nimport cpp_kernels", chain=cases.CHAIN_KERNEL)
    judgement = await local.judge(cases.CHAIN_TASK, forbidden, skill="cpp")
    assert judgement.outcome is Outcome.REFUSED and judgement.reward == -1
    assert local._pool._devices == [None]


class ShakyDevice:
    """Fails `failures` times over all its successors, then answers."""

    failures = 0
    calls = 0

    async def judge(self, task, candidate, artifact, *, skill, timed) -> Judgement:
        type(self).calls += 1
        if type(self).calls <= type(self).failures:
            raise DeviceError("the device hangs")
        return Judgement(outcome=Outcome.CORRECT, reward=None, message="")

    async def close(self) -> None:
        pass


async def shaky(failures: int, max_retries: int) -> tuple[JudgeCoordinator, type[ShakyDevice]]:
    kind = type("Shaky", (ShakyDevice,), {"failures": failures, "calls": 0})

    async def compile(skill: str, candidate: Candidate) -> CompileResult:
        return CompileResult(artifact=ARTIFACT, message="", seconds=0.0)

    async def make(index: int) -> ShakyDevice:
        return kind()

    config = JudgeConfig(protocol="paper", max_retries=max_retries)
    return JudgeCoordinator(compile, ProfilerPool(make, 1), config), kind


async def test_trouble_of_a_device_is_retried_and_counted_never_scored():
    coordinator, _ = await shaky(failures=2, max_retries=2)
    judgement = await coordinator.judge(cases.CHAIN_TASK, cases.HONEST, skill="cpp", timed=False)
    assert judgement.accepted
    assert coordinator.stats()["device_errors"] == 2 and coordinator.stats()["devices_replaced"] == 2


async def test_after_the_last_retry_the_error_comes_out_and_the_next_asker_tries_again():
    coordinator, kind = await shaky(failures=3, max_retries=1)
    with pytest.raises(DeviceError):
        await coordinator.judge(cases.CHAIN_TASK, cases.HONEST, skill="cpp", timed=False)
    assert kind.calls == 2
    assert (await coordinator.judge(cases.CHAIN_TASK, cases.HONEST, skill="cpp", timed=False)).accepted
    assert "outcome_wrong" not in coordinator.stats()


async def test_a_cancelled_asker_does_not_cancel_the_judgement_of_the_others(local):
    asker = asyncio.create_task(local.judge(cases.CHAIN_TASK, cases.HONEST, skill="cpp", timed=False))
    other = asyncio.create_task(local.judge(cases.CHAIN_TASK, cases.HONEST, skill="cpp", timed=False))
    await asyncio.sleep(0.05)
    asker.cancel()
    assert (await other).accepted


def test_more_devices_than_cores_is_said_before_anything_starts():
    config = JudgeConfig(num_devices=500, cores_per_device=3)
    with pytest.raises(ValueError, match="judge.num_devices=500 of judge.cores_per_device=3 need 1500 cores"):
        device_cores(config, 499)
