"""The judge behind Ray actors: real compiles and checks, and actors that die while they work."""

from __future__ import annotations

import asyncio
import os
import pickle
import signal
import time
from pathlib import Path

import psutil
import pytest
import ray

from sandbox.actors.compiling import CompileFleet
from sandbox.actors.devices import ActorDevice
from sandbox.actors.judge import RemoteJudge, start_judge
from sandbox.compile import CompileService
from sandbox.config import CompileConfig, JudgeConfig
from sandbox.types import Candidate, DeviceError, Outcome, Task

pytestmark = pytest.mark.ray

MODEL = """
import torch
import torch.nn as nn

class Model(nn.Module):
    def __init__(self, slope):
        super().__init__()
        self.slope = slope

    def forward(self, x):
        return torch.tanh(x * self.slope) + x

def get_inputs():
    return [torch.randn(256, 512)]

def get_init_inputs():
    return [0.5]
"""
KERNEL = """
#include <cmath>
#include <cstdint>
extern "C" void tanh_add(const float* x, float* y, int64_t n, float slope) {
    #pragma omp parallel for
    for (int64_t i = 0; i < n; ++i) y[i] = std::tanh(x[i] * slope) + %s;
}
"""
MODEL_NEW = """
import torch
import torch.nn as nn
import cpp_kernels

class ModelNew(nn.Module):
    def __init__(self, slope):
        super().__init__()
        self.slope = slope

    def forward(self, x):
        y = torch.empty_like(x)
        cpp_kernels.tanh_add(x, y, x.numel(), self.slope)
        return y
"""
TASK = Task(task_id="tanh_add", code=MODEL)


def candidate(term: str) -> Candidate:
    return Candidate(files={"model_new.py": MODEL_NEW, "kernels/tanh_add.cpp": KERNEL % term})


RIGHT, WRONG, BROKEN = candidate("x[i]"), candidate("0.9f * x[i]"), candidate("no_such_name")


@pytest.fixture(scope="module", autouse=True)
def cluster():
    ray.init(num_cpus=2, include_dashboard=False, logging_level="ERROR", object_store_memory=200 << 20)
    yield
    ray.shutdown()


@pytest.fixture(scope="module")
def folders(tmp_path_factory) -> Path:
    return tmp_path_factory.mktemp("judge")


@pytest.fixture(scope="module")
def judge(cluster, folders: Path):
    """One for the module: its devices stay warm."""
    judge = start_judge(*configs(folders), registry_dir=folders / "quiet")
    yield judge
    asyncio.run(judge.close())


def configs(folders: Path) -> tuple[JudgeConfig, CompileConfig]:
    judge = JudgeConfig(cores_per_device=min(2, os.cpu_count() or 1), num_checks=1, baseline_dir=folders / "baselines")
    return judge, CompileConfig(cache_dir=folders / "cache")


async def test_right_wrong_and_broken_kernels_are_told_apart(judge: RemoteJudge) -> None:
    judgements = await asyncio.gather(
        *(judge.judge(TASK, files, skill="cpp", timed=False) for files in (RIGHT, WRONG, BROKEN))
    )
    assert [judgement.outcome for judgement in judgements] == [Outcome.CORRECT, Outcome.WRONG, Outcome.COMPILE_ERROR]
    assert [judgement.reward for judgement in judgements] == [None, -1.0, -1.0]
    assert "no_such_name" in judgements[2].message


async def test_a_timed_judgement_has_times_and_a_reward_of_eq1(judge: RemoteJudge) -> None:
    done: list[str] = []
    times = await judge.prepare([TASK], lambda number, total, text: done.append(f"{number}/{total} {text}"))
    assert len(done) == 1 and done[0].startswith("1/1 tanh_add: eager ")
    judgement = await judge.judge(TASK, RIGHT, skill="cpp")
    assert judgement.accepted and judgement.reward in (1.0, 2.0, 3.0)
    assert min(*times["tanh_add"], judgement.candidate_ms or 0, judgement.eager_ms or 0, judgement.compile_ms or 0) > 0


async def test_the_same_files_are_judged_once(judge: RemoteJudge) -> None:
    before = await judge.stats()
    fresh = candidate("x[i] + 0.0f")
    first, second = await asyncio.gather(*(judge.judge(TASK, fresh, skill="cpp", timed=False) for _ in range(2)))
    third = await judge.judge(TASK, fresh, skill="cpp", timed=False)
    after = await judge.stats()
    assert first == second == third
    assert after["judged"] == before["judged"] + 1 and after["deduplicated"] == before.get("deduplicated", 0) + 2


async def test_it_may_be_sent_to_another_actor(judge: RemoteJudge) -> None:
    @ray.remote(num_cpus=0)
    class Elsewhere:
        def __init__(self, judge: RemoteJudge) -> None:
            self._judge = judge

        async def judge(self) -> str:
            return str((await self._judge.judge(TASK, WRONG, skill="cpp", timed=False)).outcome)

        async def compile(self) -> bool:
            result = await asyncio.to_thread(self._judge.compile, "cpp", RIGHT)
            return result.artifact is not None

    elsewhere = Elsewhere.remote(judge)
    assert await elsewhere.judge.remote() == "wrong" and await elsewhere.compile.remote()
    ray.kill(elsewhere)


async def test_trouble_with_the_task_itself_keeps_its_type(judge: RemoteJudge) -> None:
    from sandbox.tasks import TaskError

    broken = Task(task_id="broken", code=MODEL.replace("torch.tanh", "torch.no_such_function"))
    with pytest.raises(TaskError, match="no_such_function") as caught:
        await judge.judge(broken, RIGHT, skill="cpp", timed=False)
    assert type(caught.value) is TaskError
    with pytest.raises(TaskError, match="no_such_function"):
        await judge.prepare([broken])
    pickle.dumps(caught.value)


async def test_a_device_that_dies_is_replaced_and_its_candidate_judged(folders: Path) -> None:
    """In this process, so that the test can reach the actors."""
    from sandbox.judge.coordinator import JudgeCoordinator
    from sandbox.pool import ProfilerPool

    judge_config, compile_config = configs(folders)
    devices: list[ActorDevice] = []

    async def make_device(index: int) -> ActorDevice:
        devices.append(await ActorDevice.start(judge_config, index, folders / "quiet"))
        return devices[-1]

    fleet = CompileFleet(compile_config, max_retries=1)
    coordinator = JudgeCoordinator(
        fleet.compile, ProfilerPool(make_device, 1), judge_config.model_copy(update={"max_retries": 1})
    )
    assert (await coordinator.judge(TASK, RIGHT, skill="cpp", timed=False)).accepted
    pid = await devices[0].process_id()
    children = psutil.Process(pid).children(recursive=True)
    victim = candidate("x[i] * 1.0f")
    await fleet.compile("cpp", victim)  # so that the device has it at once
    os.kill(pid, signal.SIGSTOP)  # so that it dies in the middle of the job, however fast the machine is
    judging = asyncio.create_task(coordinator.judge(TASK, victim, skill="cpp", timed=False))
    await asyncio.sleep(0.3)
    os.kill(pid, signal.SIGKILL)
    assert (await judging).accepted
    stats = coordinator.stats()
    assert len(devices) == 2 and stats["devices_replaced"] == 1 and stats["device_errors"] == 1
    assert stats["outcome_correct"] == 2
    assert children and not psutil.wait_procs(children, timeout=10)[1], "the device's own processes outlive it"
    await coordinator.close()
    fleet.close()
    with pytest.raises(DeviceError, match="profiler device 0, process_id: "):
        for _ in range(100):  # ray.kill returns before the actor has ended
            await devices[1].process_id()
            await asyncio.sleep(0.1)


async def test_a_device_that_cannot_exist_is_a_value_error_that_says_so(folders: Path) -> None:
    config = configs(folders)[0].model_copy(update={"cores_per_device": 4096})
    with pytest.raises(ValueError, match="cores_per_device=4096"):
        await ActorDevice.start(config, 0, folders / "quiet")


async def test_a_compile_worker_that_dies_is_replaced(folders: Path) -> None:
    fleet = CompileFleet(configs(folders)[1], max_retries=1)
    assert (await fleet.compile("cpp", RIGHT)).artifact is not None
    actor = await fleet._idle.get()
    fleet._idle.put_nowait(actor)
    ray.kill(actor)
    assert (await fleet.compile("cpp", RIGHT)).artifact is not None
    assert fleet.num_replaced == 1
    fleet.close()


async def test_a_judge_that_dies_is_restarted_and_asked_again(folders: Path) -> None:
    judge = start_judge(*configs(folders), registry_dir=folders / "quiet")
    assert (await judge.judge(TASK, BROKEN, skill="cpp")).outcome is Outcome.COMPILE_ERROR
    judging = asyncio.create_task(judge.judge(TASK, candidate("nor_this_one"), skill="cpp"))
    await asyncio.sleep(0.1)
    ray.kill(judge._handle, no_restart=False)
    assert (await judging).outcome is Outcome.COMPILE_ERROR
    assert (await judge.stats())["judged"] == 1  # those of the new process
    await judge.close()
    await judge.close()


async def test_one_actor_judges_as_many_at_once_as_its_device_may(folders: Path) -> None:
    config = configs(folders)[0].model_copy(update={"jobs_per_device": 2, "quiet": False})
    artifact = CompileService(configs(folders)[1]).compile("cpp", RIGHT).artifact
    assert artifact is not None
    slow = Candidate(files=RIGHT.files | {"model_new.py": "import time\ntime.sleep(2)\n" + MODEL_NEW})
    device = await ActorDevice.start(config, 0, folders / "quiet-2")
    try:
        began = time.monotonic()
        judged = [device.judge(TASK, slow, artifact, skill="cpp", timed=False) for _ in range(2)]
        judgements = await asyncio.gather(*judged)
        elapsed = time.monotonic() - began
    finally:
        await device.close()
    assert [each.outcome for each in judgements] == [Outcome.CORRECT] * 2
    assert elapsed < sum(each.details["phases"]["total_s"] for each in judgements) - 1.0
