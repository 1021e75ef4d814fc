"""What vLLM is told of memory."""

from __future__ import annotations

from pathlib import Path

import pytest

from rollout.config import EngineConfig
from rollout.engine_process import engine_arguments

GIB = 2**30


@pytest.mark.parametrize(
    ("given", "is_cpu", "kv_bytes"),
    [(None, True, GIB), (0.5, True, GIB // 2), (16, False, 16 * GIB), (None, False, None)],
)
def test_the_cache_has_the_size_that_was_given_and_a_gpu_of_its_own_is_measured(given, is_cpu, kv_bytes) -> None:
    arguments = engine_arguments(Path("model"), EngineConfig(kv_cache_gib=given), is_cpu=is_cpu)
    assert arguments.get("kv_cache_memory_bytes") == kv_bytes
    assert ("gpu_memory_utilization" in arguments) is not is_cpu
