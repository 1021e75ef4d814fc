"""Weights are exchanged while nobody is frozen for a clock, so replies wait no longer than the exchange takes."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
import ray
from rollout_tokenizers import small_tokenizer

from rollout.actors import EngineActor
from rollout.config import EngineConfig
from rollout.packages import WeightsPackage
from rollout.scripted_load import TurnLoad
from sandbox.quiet import QuietLease

pytestmark = pytest.mark.ray


@pytest.fixture
def cluster():
    paths = os.pathsep.join([str(Path(__file__).parents[2]), str(Path(__file__).parent)])
    ray.init(
        num_cpus=1,
        include_dashboard=False,
        logging_level="ERROR",
        object_store_memory=100 << 20,
        runtime_env={"env_vars": {"PYTHONPATH": paths}},
    )
    yield
    ray.shutdown()


@pytest.mark.usefixtures("cluster")
def test_an_update_waits_for_the_timed_section_and_leaves_the_next_alone(tmp_path: Path) -> None:
    small_tokenizer().save(str(tmp_path / "tokenizer.json"))
    engine = EngineActor.remote(str(tmp_path), EngineConfig(scripted=TurnLoad()))
    ray.get(engine.start.remote())
    lease = QuietLease(tmp_path / "registry")
    ray.get(engine.join_quiet.remote(tmp_path / "registry"))
    with lease.hold() as frozen:
        assert frozen > 0
        update = engine.publish.remote(WeightsPackage(version=1, files=[]))
        assert not ray.wait([update], timeout=0.5)[0]
    assert ray.get(update, timeout=10)["version"] == 1
    with lease.hold() as frozen:  # nothing of the update keeps the next clock from its quiet
        assert frozen > 0
    lease.close()
