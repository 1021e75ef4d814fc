"""Actors of a run on GPUs that Ray believes in: who shares one, and what is said while there is none."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path
from typing import Any

import pytest
import ray

from jaxagent.collection.placement import place
from jaxagent.config.load import ConfigError, load_config

pytestmark = pytest.mark.ray


@pytest.fixture(scope="module")
def two_gpus():
    ray.init(
        num_cpus=2, num_gpus=2, include_dashboard=False, logging_level="ERROR", object_store_memory=100 << 20,
        runtime_env={"env_vars": {"PYTHONPATH": str(Path(__file__).parents[3])}},
    )  # fmt: skip
    yield
    ray.shutdown()


@ray.remote(num_cpus=0)
class Part:
    def gpu(self) -> tuple[list[Any], str | None]:
        return ray.get_gpu_ids(), os.environ.get("CUDA_VISIBLE_DEVICES")


def config(*overrides: str):
    return load_config(Path("configs/smoke.yaml"), ["--judge.device=cuda", "--gpus.wait_s=60", *overrides])


async def placed(config: Any, said: list[str], **options: Any):
    settings: dict[str, Any] = {"with_learner": True, "with_judge": True, "own_ray": False} | options
    return await place(config, say=said.append, **settings)


async def gpus_of(placement: Any, *, profilers: int) -> tuple[str, str, list[str]]:
    """The GPU that learner, engine and profilers see; each sees one alone."""
    options = [placement.learner(), placement.engine(0), *placement.profilers()]
    parts: list[Any] = [Part.options(**one).remote() for one in options]
    seen = await asyncio.gather(*(part.gpu.remote() for part in parts))
    assert len(options) == 2 + profilers
    assert all(visible == str(ids[0]) and len(ids) == 1 for ids, visible in seen)
    for part in parts:
        ray.kill(part)
    learner, engine, *others = (visible for _, visible in seen)
    return learner, engine, others


async def test_one_gpu_is_shared_by_all_and_two_as_the_config_says(two_gpus):
    said: list[str] = []
    shares = ["--gpus.learner=0.4", "--gpus.engine=0.4", "--gpus.profiler=0.2"]
    placement = await placed(config(*shares, "--engine.weight_transfer=ipc"), said)
    learner, engine, profilers = await gpus_of(placement, profilers=1)
    assert learner == engine == profilers[0]
    placement.release()

    placement = await placed(config(*shares, "--engine.weight_transfer=nccl", "--judge.num_devices=2"), said)
    learner, engine, profilers = await gpus_of(placement, profilers=2)
    assert learner != engine and set(profilers) == {learner}
    placement.release()

    placement = await placed(config(), said, with_judge=False)
    assert placement.learner() == placement.engine(0) == {} and placement.profilers() == []
    placement.release()


async def test_a_run_that_waits_says_what_for(two_gpus, monkeypatch):
    monkeypatch.setattr("jaxagent.collection.placement._SAY_EVERY_S", 0.3)
    said: list[str] = []
    both = ["--gpus.learner=1", "--gpus.engine=1", "--gpus.profiler=0.5", "--engine.weight_transfer=nccl"]
    holder = await placed(config("--gpus.engine=1", "--engine.num_engines=2"), [], with_judge=False)
    waiting = asyncio.ensure_future(placed(config(*both), said, with_judge=False))
    while not said:
        await asyncio.sleep(0.05)
    assert said[0].startswith(
        "waiting for GPUs: gpus of run smoke asks for 2 whole GPU(s) (learner on 0; engines on 1); Ray has 2 GPU(s)"
    )
    assert not waiting.done()
    holder.release()
    (await waiting).release()

    with pytest.raises(ConfigError, match="asks for 3 whole GPU.s. .*; lower the shares in gpus"):
        await placed(config(*both), said, own_ray=True)
    with pytest.raises(ConfigError, match="asks for 3 whole GPU"):
        await placed(config(*both, "--gpus.wait_s=0.5"), said)
    with pytest.raises(ConfigError, match="engine.weight_transfer=ipc needs the learner and every engine on one GPU"):
        await placed(config("--engine.weight_transfer=ipc"), said)
