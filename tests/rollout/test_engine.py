"""The real vLLM engine against transformers: logprobs, published weights, versions, and everything that can hang."""

from __future__ import annotations

import asyncio
import dataclasses
import os
import signal
import subprocess
import sys
import textwrap
import time
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pytest
import pytest_asyncio
import torch
from small_models import (
    CONFIG,
    LARGEST_GAP,
    SHAPE,
    VOCAB,
    generate_all,
    largest_gap,
    make_model,
    named_weights,
    prompts,
    reference_logprobs,
)
from transformers import LlamaConfig, PreTrainedModel, Qwen2Config

from rollout.engine import VllmEngine
from rollout.packages import WeightsError
from rollout.token_versions import CountedVersions, ReportedVersions
from rollout.types import Completion, EngineError, SamplingParams
from rollout.weights import WeightsWriter

pytestmark = [pytest.mark.vllm, pytest.mark.asyncio(loop_scope="module")]


@pytest.fixture(scope="module")
def models() -> tuple[PreTrainedModel, PreTrainedModel]:
    """Two sets of weights of one tied Llama: the output layer has no weights of its own to be published."""
    config = LlamaConfig(**SHAPE, tie_word_embeddings=True)
    return make_model(config, 0), make_model(config, 1)


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def engine(models, tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[VllmEngine]:
    folder = tmp_path_factory.mktemp("llama")
    models[0].save_pretrained(folder)
    environment = dict(os.environ)
    engine = VllmEngine(folder, CONFIG)
    seconds = await engine.start()
    print(f"engine ready after {seconds:.1f} s")
    assert dict(os.environ) == environment, "starting an engine must leave the environment as it was"
    yield engine
    processes = engine.process_ids()
    await engine.close()
    assert processes and not any(psutil.pid_exists(pid) for pid in processes)


@pytest.fixture(scope="module")
def writer() -> Iterator[WeightsWriter]:
    writer = WeightsWriter()
    yield writer
    writer.close()
    assert not writer.folder.exists()


@pytest.mark.parametrize("temperature", [1.0, 0.7, 1.5])
async def test_logprobs_are_those_of_the_logits_divided_by_the_temperature(engine, models, temperature: float) -> None:
    completions = await generate_all(engine, 12, temperature=temperature)
    gap = largest_gap(models[0], completions, temperature)
    print(f"largest logprob gap to transformers at T={temperature}: {gap:.1e}")
    assert gap < LARGEST_GAP
    for found in completions:
        assert found.finish_reason == "length" and len(found.token_ids) == 40
        assert (found.token_ids.dtype, found.logprobs.dtype) == (np.int32, np.float32)
        assert found.policy_versions.tolist() == [0] * 40


async def test_tokens_are_drawn_from_the_distribution_whose_logprobs_are_reported(engine, models) -> None:
    """Chi-square of 1,500 draws over groups of tokens that are equally likely, at T = 0.7, by transformers."""
    temperature, draws, groups, prompt = 0.7, 1500, 12, prompts(1)[0]
    found = await asyncio.gather(
        *(engine.generate(prompt, SamplingParams(max_tokens=1, temperature=temperature, seed=k)) for k in range(draws))
    )
    with torch.no_grad():
        likely = (models[0](torch.tensor([prompt])).logits[0, -1].double() / temperature).softmax(-1).numpy()
    order = np.argsort(likely)
    group = np.empty(VOCAB, np.int64)
    group[order] = np.minimum((np.cumsum(likely[order]) * groups).astype(np.int64), groups - 1)
    expected = np.bincount(group, likely, groups) * draws
    drawn = np.bincount(group[np.concatenate([completion.token_ids for completion in found])], minlength=groups)
    kept = expected > 5
    statistic = float((((drawn - expected) ** 2) / np.maximum(expected, 1e-9))[kept].sum())
    print(f"chi-square {statistic:.1f} over {kept.sum()} groups")
    assert kept.sum() >= 5 and statistic < 35.0  # 35 is the 99.9 % point at 13 degrees of freedom


async def test_greedy_sampling_takes_the_most_likely_token(engine, models) -> None:
    (found,) = await generate_all(engine, 1, temperature=0.0)
    with torch.no_grad():
        logits = models[0](torch.tensor([[*prompts(1)[0], *found.token_ids.tolist()]])).logits[0]
    assert logits.argmax(-1)[19:-1].tolist() == found.token_ids.tolist()
    assert np.abs(reference_logprobs(models[0], prompts(1)[0], found.token_ids) - found.logprobs).max() < LARGEST_GAP


async def test_generation_stops_at_a_stop_token_and_keeps_it(engine) -> None:
    (whole,) = await generate_all(engine, 1)
    stop = int(whole.token_ids[10])
    first = int(np.flatnonzero(whole.token_ids == stop)[0])
    params = SamplingParams(max_tokens=40, seed=0, stop_token_ids=[stop])
    found = await engine.generate(prompts(1)[0], params)
    assert found.finish_reason == "stop" and found.token_ids.tolist() == whole.token_ids[: first + 1].tolist()


async def test_a_reply_ends_where_the_context_ends(engine) -> None:
    found = await engine.generate(prompts(1, 250)[0], SamplingParams(max_tokens=100, seed=0))
    assert found.finish_reason == "length" and len(found.token_ids) == 6


@pytest.mark.parametrize(
    ("prompt", "params", "message"),
    [
        ([], SamplingParams(max_tokens=4), "the prompt has 0 tokens"),
        ([1] * 256, SamplingParams(max_tokens=4), "max_model_len=256 it may have 1 to 255"),
        ([1, VOCAB], SamplingParams(max_tokens=4), f"run from 1 to {VOCAB}; the model knows 0 to {VOCAB - 1}"),
        ([-1, 5], SamplingParams(max_tokens=4), "run from -1 to 5"),
        ([1], SamplingParams(max_tokens=0), "max_tokens=0"),
        ([1], SamplingParams(max_tokens=4, temperature=0.001), "temperature=0.001"),
    ],
)
async def test_requests_that_cannot_be_served_say_why(
    engine, prompt: list[int], params: SamplingParams, message: str
) -> None:
    with pytest.raises(ValueError, match=message):
        await engine.generate(prompt, params)


async def test_publishing_changes_the_policy_and_the_old_weights_bring_it_back_exactly(engine, models, writer) -> None:
    old, new = models

    async def one_by_one() -> list[Completion]:  # the same steps every time: no batch of chance changes the rounding
        return [await engine.generate(prompt, SamplingParams(max_tokens=30, seed=7)) for prompt in prompts(3)]

    before = await one_by_one()
    package = writer.write(named_weights(new), version=1)
    report = await engine.publish(package)
    print(f"published {report['num_bytes']:,} bytes, sampling stood still for {report['pause_s']:.3f} s")
    assert (report["version"], report["checksum"], engine.version) == (1, package.checksum, 1)
    changed = await generate_all(engine, 8)
    assert largest_gap(new, changed) < LARGEST_GAP < 0.1 < largest_gap(old, changed)
    assert all((found.policy_versions == 1).all() for found in changed)

    await engine.publish(writer.write(named_weights(old), version=2))
    for first, again in zip(before, await one_by_one(), strict=True):
        assert first.token_ids.tolist() == again.token_ids.tolist()
        assert first.logprobs.tobytes() == again.logprobs.tobytes()


async def test_an_update_in_the_middle_of_a_reply_splits_it_at_one_token(engine, models, writer) -> None:
    """Before the split every logprob is the old policy's, after it the new one's, on the prefix as it was sampled."""
    old, new = models
    await engine.publish(writer.write(named_weights(old), version=10))
    package = writer.write(named_weights(new), version=11)
    running = asyncio.ensure_future(generate_all(engine, 12, max_tokens=220))
    await asyncio.sleep(0.25)
    await engine.publish(package)
    split_replies = 0
    for prompt, found in zip(prompts(12), await running, strict=True):
        assert len(found.token_ids) == 220
        assert np.diff(found.policy_versions).min() >= 0 and set(found.policy_versions.tolist()) <= {10, 11}
        split = int((found.policy_versions == 10).sum())
        split_replies += 0 < split < 220
        for model, part in ((old, slice(0, split)), (new, slice(split, None))):
            gap = np.abs(reference_logprobs(model, prompt, found.token_ids)[part] - found.logprobs[part])
            assert gap.max(initial=0.0) < LARGEST_GAP
    assert split_replies >= 10


class BothVersions(CountedVersions):
    """Counts, beside the spans that vLLM reports, and keeps what each made of every reply."""

    def __init__(self, engine: Any, *, max_num_seqs: int) -> None:
        super().__init__(engine, max_num_seqs=max_num_seqs)
        self.reported = ReportedVersions(engine)
        self.pairs: list[tuple[list[int], list[int]]] = []

    async def finish_update(self, version: int) -> None:
        await super().finish_update(version)
        await self._engine.update_weight_version(str(version))

    def of(self, request_id: str, sample: Any) -> np.ndarray:
        counted, reported = super().of(request_id, sample), self.reported.of(request_id, sample)
        self.pairs.append((counted.tolist(), reported.tolist()))
        return counted


async def test_versions_that_are_counted_are_those_that_vllm_reports(engine, models, writer) -> None:
    """vLLM 0.26 reports none. Many more replies than fit at once, short and long, over updates at odd moments."""
    versions = BothVersions(engine._engine, max_num_seqs=CONFIG.max_num_seqs)
    await versions.start(engine.version)
    before = engine._versions
    engine._versions = engine._exchange._versions = versions
    try:
        rng = np.random.default_rng(1)
        running = [
            asyncio.ensure_future(engine.generate(prompt, SamplingParams(max_tokens=int(rng.integers(1, 120)), seed=i)))
            for i, prompt in enumerate(prompts(120))
        ]
        for version in range(12, 20):
            await asyncio.sleep(float(rng.uniform(0.0, 0.3)))
            await engine.publish(writer.write(named_weights(models[version % 2]), version=version))
        await asyncio.gather(*running)
        assert not versions._starts
    finally:
        engine._versions = engine._exchange._versions = before
    assert len(versions.pairs) == 120
    assert all(counted == reported for counted, reported in versions.pairs)
    assert sum(len(set(counted)) > 1 for counted, _ in versions.pairs) > 20


async def test_weights_that_are_not_as_announced_are_rejected_and_the_old_ones_serve_on(engine, models, writer) -> None:
    old, new = models
    await engine.publish(writer.write(named_weights(old), version=20))
    good = writer.write(named_weights(new), version=21)
    path = Path(good.files[0].path)
    data = bytearray(path.read_bytes())
    data[-1] ^= 1
    path.write_bytes(data)
    with pytest.raises(WeightsError, match="rejected before loading: version 21: .* announced were"):
        await engine.publish(good)
    path.unlink()
    with pytest.raises(WeightsError, match="cannot be read: No such file"):
        await engine.publish(good)
    for wrong, message in (
        (
            [(name, array) for name, array in named_weights(new) if "layers.1.mlp.up" not in name],
            "missing .'model.layer",
        ),
        ([*named_weights(new), ("lm_head.weight", np.zeros((VOCAB, 128), np.float32))], "unknown .'lm_head.weight'"),
        ([(name, array[:1]) for name, array in named_weights(new)], "other shape"),
    ):
        with pytest.raises(WeightsError, match=message):
            await engine.publish(writer.write(wrong, version=22))
    with pytest.raises(ValueError, match="holds version 20"):
        await engine.publish(dataclasses.replace(good, version=20), version=21)
    assert engine.version == 20
    completions = await generate_all(engine, 4)
    assert largest_gap(old, completions) < LARGEST_GAP
    assert all((found.policy_versions == 20).all() for found in completions)
    await engine.publish(writer.write(named_weights(new), version=23))
    assert largest_gap(new, await generate_all(engine, 4)) < LARGEST_GAP


async def test_a_cancelled_request_frees_the_engine(engine) -> None:
    request = asyncio.ensure_future(engine.generate(prompts(1)[0], SamplingParams(max_tokens=230, seed=0)))
    await asyncio.sleep(0.05)
    request.cancel()
    with pytest.raises(asyncio.CancelledError):
        await request
    assert len(await generate_all(engine, 16, max_tokens=5)) == 16


async def test_health_notices_a_frozen_process_and_its_return(engine) -> None:
    await engine.check_health(timeout_s=30.0)
    (pid,) = engine.process_ids()
    os.kill(pid, signal.SIGSTOP)
    try:
        with pytest.raises(EngineError, match="no sign of life for 0.5 s"):
            await engine.check_health(timeout_s=0.5)
    finally:
        os.kill(pid, signal.SIGCONT)
    await engine.check_health(timeout_s=30.0)
    assert len(await generate_all(engine, 2, max_tokens=5)) == 2


async def test_an_untied_model_with_biases_is_published_whole_and_a_publish_that_hangs_ends_the_engine(
    tmp_path: Path, writer
) -> None:
    config = Qwen2Config(**SHAPE, tie_word_embeddings=False)
    old, new = make_model(config, 2), make_model(config, 3)
    old.save_pretrained(tmp_path)
    engine = VllmEngine(tmp_path, CONFIG.model_copy(update={"publish_timeout_s": 2.0, "request_timeout_s": 20.0}))
    await engine.start(version=5)
    try:
        assert largest_gap(old, await generate_all(engine, 4)) < LARGEST_GAP
        await engine.publish(writer.write(named_weights(new), version=6))
        assert largest_gap(new, await generate_all(engine, 4)) < LARGEST_GAP

        running = asyncio.ensure_future(generate_all(engine, 2, max_tokens=200))
        await asyncio.sleep(0.1)
        (pid,) = engine.process_ids()
        os.kill(pid, signal.SIGSTOP)
        began = time.monotonic()
        with pytest.raises(EngineError, match="version 7 took longer than engine.publish_timeout_s=2"):
            await engine.publish(writer.write(named_weights(old), version=7))
        assert time.monotonic() - began < 10.0
        assert not psutil.pid_exists(pid)
        with pytest.raises(EngineError):
            await running
        for call in (
            generate_all(engine, 1),
            engine.check_health(),
            engine.publish(writer.write(named_weights(old), version=8)),
        ):
            with pytest.raises(EngineError, match="cannot be used: publishing version 7"):
                await call
    finally:
        await engine.close()
        await engine.close()


async def test_a_start_that_takes_too_long_leaves_no_process(models, tmp_path: Path) -> None:
    models[0].save_pretrained(tmp_path)
    before = {child.pid for child in psutil.Process().children(recursive=True)}
    engine = VllmEngine(tmp_path, CONFIG.model_copy(update={"start_timeout_s": 2.0}))
    with pytest.raises(EngineError, match="not ready after engine.start_timeout_s=2"):
        await engine.start()
    with pytest.raises(EngineError, match="cannot be used"):
        await engine.generate([1], SamplingParams(max_tokens=1))
    deadline = time.monotonic() + 120.0
    while time.monotonic() < deadline:
        left = [
            child
            for child in psutil.Process().children(recursive=True)
            if child.pid not in before and "resource_tracker" not in " ".join(child.cmdline())
        ]
        if not left:
            break
        await asyncio.sleep(0.2)
    assert not left


@pytest.mark.parametrize(
    ("prepare", "change", "message"),
    [
        (False, {}, "is no model folder"),
        (True, {"weight_transfer": "ipc"}, "engine.weight_transfer='ipc' needs a GPU that learner and engine share"),
    ],
)
async def test_a_start_that_cannot_work_says_so_at_once(
    models, tmp_path: Path, prepare: bool, change: dict[str, str], message: str
) -> None:
    if prepare:
        models[0].save_pretrained(tmp_path)
    with pytest.raises(ValueError, match=message):
        await VllmEngine(tmp_path, CONFIG.model_copy(update=change)).start()


async def test_a_vllm_that_would_not_find_the_plugin_is_noticed_before_it_starts(
    models, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    models[0].save_pretrained(tmp_path)
    monkeypatch.setenv("VLLM_PLUGINS", "another")
    with pytest.raises(ValueError, match="VLLM_PLUGINS='another' keeps vLLM from loading jaxagent"):
        await VllmEngine(tmp_path, CONFIG).start()


PARENT = """
import asyncio, sys
from rollout.engine import VllmEngine
from tests.rollout.small_models import CONFIG
async def main():
    engine = VllmEngine(sys.argv[1], CONFIG)
    await engine.start()
    print(*engine.process_ids(), flush=True)
    await asyncio.sleep(600)
asyncio.run(main())
"""


async def test_an_engine_does_not_outlive_a_killed_parent(models, tmp_path: Path) -> None:
    models[0].save_pretrained(tmp_path)
    script = tmp_path / "parent.py"
    script.write_text("if __name__ == '__main__':\n" + textwrap.indent(PARENT, "    "))
    root = str(Path(__file__).parents[2])
    parent = subprocess.Popen(
        [sys.executable, str(script), str(tmp_path)],
        stdout=subprocess.PIPE,
        text=True,
        env=os.environ | {"PYTHONPATH": root},
    )
    assert parent.stdout is not None
    pid = await asyncio.to_thread(lambda: next(int(line) for line in parent.stdout if line.strip().isdigit()))
    engine_process = psutil.Process(pid)
    parent.kill()
    parent.wait()
    parent.stdout.close()
    _, alive = await asyncio.to_thread(psutil.wait_procs, [engine_process], 15.0)
    assert not alive
