"""JAX learner to vLLM engine, each in its process, on every way that this machine has: CPUs, one GPU, or two."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import os
import signal
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pytest
import torch
from learner_side import LearnerSide
from rollout_tokenizers import small_tokenizer
from transformers import Qwen2Config, Qwen2ForCausalLM

from rollout.config import EngineConfig
from rollout.engine import VllmEngine
from rollout.packages import addressed_to, needs_sending
from rollout.types import Completion, EngineError, SamplingParams

pytestmark = pytest.mark.vllm

NUM_GPUS = torch.cuda.device_count()
CPU_ENGINE = {"max_model_len": 256, "max_num_seqs": 16, "kv_cache_gib": 0.125, "cpu_threads": 1}
GPU_ENGINE = {"max_model_len": 256, "max_num_seqs": 16, "dtype": "bfloat16", "gpu_memory_utilization": 0.05}
LORA = ["--learner.lora.rank=4", "--learner.lora.targets=[q_proj, o_proj, up_proj]"]
WAYS = [
    pytest.param(("shared_memory", "cpu"), id="files between CPUs"),
    pytest.param(("nccl", "cpu"), id="gloo between CPUs", marks=pytest.mark.slow),
    pytest.param(("ipc", "cuda"), id="IPC on one GPU", marks=pytest.mark.gpu),
    pytest.param(("nccl", "cuda"), id="NCCL between two GPUs", marks=pytest.mark.gpu),
]
GPU_ENVIRONMENT = {"JAX_PLATFORMS": None, "XLA_FLAGS": None, "JAX_NUMPY_RANK_PROMOTION": None}


@dataclasses.dataclass
class Pair:
    """A learner and an engine; everything of the engine runs in one loop."""

    learner: LearnerSide
    engine: VllmEngine
    loop: asyncio.AbstractEventLoop
    largest_gap: float
    start: int = 0

    def run(self, coroutine: Any) -> Any:
        return self.loop.run_until_complete(coroutine)

    def publish(self, package: Any) -> dict[str, Any]:
        return self.run(self._publish(package))

    async def _publish(self, package: Any) -> dict[str, Any]:
        if not needs_sending(package):
            return await self.engine.publish(package)
        package = addressed_to(package, engine=0, start=self.start)
        report, _ = await asyncio.gather(self.engine.publish(package), asyncio.to_thread(self.learner.send, package))
        return report

    def replies(self) -> list[Completion]:
        """One after the other, so that no batch of chance changes the rounding."""
        prompts = np.random.default_rng(0).integers(3, 600, (3, 20))
        params = SamplingParams(max_tokens=24, seed=7)
        return [self.run(self.engine.generate(prompt.tolist(), params)) for prompt in prompts]


@pytest.fixture(scope="module")
def model_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A random Qwen2 with biases and tied embeddings that speaks the tests' tokenizer."""
    folder, tokenizer = tmp_path_factory.mktemp("model"), small_tokenizer()
    torch.manual_seed(0)
    config = Qwen2Config(
        vocab_size=tokenizer.get_vocab_size(), hidden_size=128, intermediate_size=192, num_hidden_layers=2,
        num_attention_heads=2, num_key_value_heads=1, max_position_embeddings=512, tie_word_embeddings=True,
        bos_token_id=None, eos_token_id=None, pad_token_id=None, initializer_range=0.1,
    )  # fmt: skip
    Qwen2ForCausalLM(config).save_pretrained(folder)
    tokenizer.save(str(folder / "tokenizer.json"))
    return folder


@contextlib.contextmanager
def made(model_dir: Path, folder: Path, transfer: str, device: str, *, lora: bool, timeout_s: float) -> Iterator[Pair]:
    engine: dict[str, Any] = GPU_ENGINE if device == "cuda" else CPU_ENGINE
    config = EngineConfig.model_validate(
        engine | {"weight_transfer": transfer, "publish_timeout_s": timeout_s, "start_timeout_s": 300.0}
    )
    overrides = [f"--engine.{name}={value}" for name, value in config.model_dump(exclude_defaults=True).items()]
    environment: dict[str, str | None] = {"XLA_FLAGS": None}
    if device == "cuda":
        environment = GPU_ENVIRONMENT | {"CUDA_VISIBLE_DEVICES": "1" if transfer == "nccl" else "0"}
        overrides += ["--gpus.learner=0.5", "--gpus.engine=0.5", "--gpus.learner_memory=0.2"]
    learner = LearnerSide(model_dir, folder, overrides=overrides + (LORA if lora else []), environment=environment)
    loop = asyncio.new_event_loop()
    pair = Pair(learner, VllmEngine(model_dir, config), loop, largest_gap=1e-4 if device == "cpu" else 0.15)
    try:
        print(f"engine ready after {pair.run(pair.engine.start()):.0f} s")
        yield pair
    finally:
        learner.close()
        pair.run(pair.engine.close())
        loop.close()


@pytest.fixture(scope="module", params=WAYS)
def pair(request: pytest.FixtureRequest, model_dir: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Pair]:
    transfer, device = request.param
    needed = {"ipc": 1, "nccl": 2}.get(transfer, 0) if device == "cuda" else 0
    if needed > NUM_GPUS:
        pytest.skip(f"needs {needed} GPU(s), torch sees {NUM_GPUS}")
    if device == "cpu" and NUM_GPUS:
        pytest.skip("vLLM for CUDA is here, and none for CPUs")
    with made(model_dir, tmp_path_factory.mktemp("run") / "x", transfer, device, lora=True, timeout_s=60.0) as pair:
        yield pair


def test_what_is_published_is_what_the_learner_has_and_old_weights_bring_old_replies_back_exactly(pair: Pair) -> None:
    replies, reports = [], []
    for version, which in enumerate((0, 1, 0, 2, 0), start=1):
        report = pair.publish(pair.learner.write(which, version))
        shown = {name: round(value, 4) for name, value in report.items() if isinstance(value, float)}
        print(f"version {version}: {report['loaded_bytes']:,} of {report['num_bytes']:,} bytes, {shown}")
        assert report["probe_gap"] < pair.largest_gap
        reports.append(report)
        replies.append(pair.replies())
        assert all((reply.policy_versions == version).all() for reply in replies[-1])
    for again in (replies[2], replies[4]):
        for first, other in zip(replies[0], again, strict=True):
            assert first.token_ids.tolist() == other.token_ids.tolist()
            assert first.logprobs.tobytes() == other.logprobs.tobytes()
    assert replies[0][0].logprobs.tobytes() != replies[1][0].logprobs.tobytes() != replies[3][0].logprobs.tobytes()
    # adapters change a part of the weights, and after the first time nothing else is loaded
    assert reports[0]["loaded_bytes"] == reports[0]["num_bytes"] > reports[1]["loaded_bytes"]
    pair.run(pair.engine.check_health())


def test_bytes_that_are_not_the_announced_ones_are_refused_and_the_old_weights_serve_on(pair: Pair) -> None:
    pair.publish(pair.learner.write(1, 10))
    before = pair.replies()
    good = pair.learner.write(2, 11)
    if hasattr(good, "parts"):
        bad = dataclasses.replace(good, parts=[dataclasses.replace(good.parts[0], checksum="0" * 32), *good.parts[1:]])
    else:
        bad = dataclasses.replace(good, files=[dataclasses.replace(good.files[0], sha256="0" * 64), *good.files[1:]])
    with pytest.raises(Exception, match="weights rejected before loading: version 11: .* announced w"):
        pair.publish(bad)
    assert pair.engine.version == 10
    for first, again in zip(before, pair.replies(), strict=True):
        assert first.logprobs.tobytes() == again.logprobs.tobytes() and (again.policy_versions == 10).all()
    pair.publish(good)
    assert pair.engine.version == 11


def test_replies_under_way_are_split_at_a_token(pair: Pair) -> None:
    pair.publish(pair.learner.write(0, 20))
    package = pair.learner.write(1, 21)

    async def scene() -> list[Completion]:
        replies = [pair.engine.generate([5, 6, 7], SamplingParams(max_tokens=220, seed=i)) for i in range(12)]
        running = asyncio.gather(*replies)
        await asyncio.sleep(0.1)
        await pair._publish(package)
        return await running

    replies = pair.run(scene())
    assert all(set(reply.policy_versions.tolist()) <= {20, 21} for reply in replies)
    assert all(np.diff(reply.policy_versions).min() >= 0 for reply in replies)
    assert sum(len(set(reply.policy_versions.tolist())) == 2 for reply in replies) >= 6


def test_a_learner_that_stands_still_costs_the_engine_its_time_limit_and_a_fresh_group_works(
    pair: Pair, model_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    package = pair.learner.write(0, 30)
    if not needs_sending(package):
        pytest.skip("the learner takes no part in this exchange")
    pair.publish(package)
    (process,) = pair.engine.process_ids()
    lost = addressed_to(pair.learner.write(1, 31), engine=0, start=pair.start)
    os.kill(pair.learner.process.pid or 0, signal.SIGSTOP)
    monkeypatch.setattr(pair.engine, "_config", pair.engine._config.model_copy(update={"publish_timeout_s": 3.0}))
    began = time.monotonic()
    try:
        with pytest.raises(EngineError, match="publishing version 31 took longer than engine.publish_timeout_s=3"):
            pair.run(pair.engine.publish(lost))
    finally:
        os.kill(pair.learner.process.pid or 0, signal.SIGCONT)
    assert time.monotonic() - began < 15.0 and not psutil.pid_exists(process)
    pair.run(pair.engine.close())
    config = pair.engine._config.model_copy(update={"publish_timeout_s": 60.0})
    pair.engine, pair.start = VllmEngine(model_dir, config), pair.start + 1
    pair.run(pair.engine.start())
    report = pair.publish(pair.learner.write(1, 32))
    assert report["probe_gap"] < pair.largest_gap and report["loaded_bytes"] == report["num_bytes"]
