"""Publishing into a real vLLM engine: packed over a process group, only what changed, and probed afterwards."""

from __future__ import annotations

import asyncio
import dataclasses
from collections.abc import AsyncIterator, Iterator
from typing import Any

import psutil
import pytest
import pytest_asyncio
import torch
from small_models import CONFIG, LARGEST_GAP, SHAPE, generate_all, largest_gap, make_model, named_weights, prompts
from transformers import PreTrainedModel, Qwen2Config

from rollout.engine import VllmEngine
from rollout.packages import PackedPackage, Probe, WeightsError, addressed_to
from rollout.packed_writer import PackedWriter
from rollout.types import EngineError, SamplingParams
from rollout.weights import WeightsWriter

pytestmark = [pytest.mark.vllm, pytest.mark.asyncio(loop_scope="module")]

PROBE = [5, 9, 17, 33, 65, 129, 3, 77]


def probe_of(model: PreTrainedModel) -> Probe:
    with torch.no_grad():
        logprobs = model(torch.tensor([PROBE])).logits[0].float().log_softmax(-1)
    chosen = logprobs[:-1].gather(1, torch.tensor(PROBE[1:])[:, None])[:, 0]
    return Probe(token_ids=PROBE, logprobs=chosen.tolist())


def is_adapted(name: str) -> bool:
    """Weights of the layers that q_proj and k_proj have a part in, and of the MLP's last one."""
    return any(part in name for part in ("q_proj", "k_proj", "v_proj", "down_proj"))


def tensors(model: PreTrainedModel, *, adapted: bool | None = None) -> list[tuple[str, torch.Tensor]]:
    return [
        (name, torch.from_numpy(array))
        for name, array in named_weights(model)
        if adapted is None or is_adapted(name) == adapted
    ]


@pytest.fixture(scope="module")
def models() -> tuple[PreTrainedModel, PreTrainedModel]:
    """Two versions of one model with biases that differ in adapted weights alone."""
    config = Qwen2Config(**SHAPE, tie_word_embeddings=True)
    first, second, other = make_model(config, 0), make_model(config, 0), make_model(config, 1)
    state = {name: tensor for name, tensor in other.state_dict().items() if is_adapted(name)}
    second.load_state_dict(state, strict=False)
    return first, second


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def engine(models, tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[VllmEngine]:
    folder = tmp_path_factory.mktemp("qwen2")
    models[0].save_pretrained(folder)
    engine = VllmEngine(folder, CONFIG.model_copy(update={"weight_transfer": "nccl", "publish_timeout_s": 15.0}))
    await engine.start()
    yield engine
    await engine.close()


@pytest.fixture(scope="module")
def packer() -> Iterator[PackedWriter]:
    writer = PackedWriter(torch.device("cpu"), host="127.0.0.1", timeout_s=10.0)
    yield writer
    writer.close()


async def exchange(engine: VllmEngine, packer: PackedWriter, package: PackedPackage) -> dict[str, Any]:
    """What the driver does: the learner sends while the engine receives."""
    report, sent = await asyncio.gather(engine.publish(package), asyncio.to_thread(packer.send, package))
    return report | {"sent_parts": sent}


async def test_after_the_first_time_only_changed_weights_are_loaded(engine, models) -> None:
    writer = WeightsWriter()
    loaded = []
    for version in (1, 2, 3):
        model = models[version % 2]
        changed = [(name, array) for name, array in named_weights(model) if is_adapted(name)]
        package = writer.write(
            changed,
            version=version,
            unchanging=[(name, array) for name, array in named_weights(models[0]) if not is_adapted(name)],
            probe=probe_of(model),
        )
        report = await engine.publish(package)
        assert report["probe_gap"] < LARGEST_GAP and report["checksum"] == package.checksum
        loaded.append(report["loaded_bytes"] / report["num_bytes"])
        assert largest_gap(model, await generate_all(engine, 6)) < LARGEST_GAP
        assert largest_gap(models[1 - version % 2], await generate_all(engine, 6)) > 0.1
    assert loaded[0] == 1.0 and loaded[1] == loaded[2] < 0.7
    writer.close()


async def test_weights_come_over_a_process_group_and_the_old_ones_bring_the_policy_back(engine, models, packer) -> None:
    async def one_by_one() -> list[Any]:
        return [await engine.generate(prompt, SamplingParams(max_tokens=30, seed=7)) for prompt in prompts(3)]

    outputs, sent = [], []
    for version in (10, 11, 12, 13):
        model = models[version % 2]
        package = packer.write(
            lambda model=model: tensors(model, adapted=True),
            version=version,
            unchanging=lambda: tensors(models[0], adapted=False),
            probe=probe_of(model),
        )
        report = await exchange(engine, packer, addressed_to(package, engine=0, start=0))
        print({name: round(value, 4) if isinstance(value, float) else value for name, value in report.items()})
        sent.append(report["sent_parts"])
        assert report["probe_gap"] < LARGEST_GAP
        assert largest_gap(model, await generate_all(engine, 6)) < LARGEST_GAP
        outputs.append(await one_by_one())
    assert sent == [2, 1, 1, 1]
    for first, again, other in zip(outputs[0], outputs[2], outputs[1], strict=True):
        assert first.token_ids.tolist() == again.token_ids.tolist() != other.token_ids.tolist()
        assert first.logprobs.tobytes() == again.logprobs.tobytes()


async def test_packed_bytes_with_another_checksum_are_refused_and_the_group_goes_on(engine, models, packer) -> None:
    good = addressed_to(packer.write(lambda: tensors(models[1], adapted=True), version=20), engine=0, start=0)
    part = dataclasses.replace(good.parts[0], checksum="0" * 32)
    with pytest.raises(WeightsError, match="version 20: .* packed bytes have checksum .*, announced was 0000"):
        await exchange(engine, packer, dataclasses.replace(good, parts=[part, *good.parts[1:]]))
    assert engine.version == 13 and largest_gap(models[1], await generate_all(engine, 4)) < LARGEST_GAP
    await exchange(engine, packer, addressed_to(good, engine=0, start=0))
    assert engine.version == 20


async def test_who_publishes_does_not_wait_for_replies_that_wait_for_a_place(engine, models, packer) -> None:
    running = asyncio.ensure_future(generate_all(engine, 5 * CONFIG.max_num_seqs, max_tokens=200))
    await asyncio.sleep(0.5)
    package = packer.write(lambda: tensors(models[0], adapted=True), version=21, probe=probe_of(models[0]))
    report = await exchange(engine, packer, addressed_to(package, engine=0, start=0))
    print(f"probe after {report['probe_s']:.2f} s")
    assert not running.done() and report["probe_gap"] < LARGEST_GAP
    await running


async def test_an_engine_whose_learner_does_not_come_is_ended_and_joins_a_fresh_group(engine, models, packer) -> None:
    lonely = PackedWriter(torch.device("cpu"), host="127.0.0.1", timeout_s=2.0)
    package = lonely.write(lambda: tensors(models[0]), version=30)
    lost = addressed_to(package, engine=0, start=7)
    with pytest.raises(EngineError, match="publishing version 30 broke off: .*weights group engine0-7, rank 1 of 2"):
        await engine.publish(lost)
    with pytest.raises(WeightsError, match="engine0-8, rank 0 of 2: joining failed within engine.publish_timeout_s=2"):
        await asyncio.to_thread(lonely.send, addressed_to(package, engine=0, start=8))
    assert engine.process_ids() == []
    await engine.close()
    again = VllmEngine(engine._model_dir, engine._config)
    await again.start()
    try:
        package = packer.write(
            lambda: tensors(models[1], adapted=True), version=31, unchanging=lambda: [], probe=probe_of(models[1])
        )
        report = await exchange(again, packer, addressed_to(package, engine=0, start=1))
        assert report["sent_parts"] == 2 and report["loaded_bytes"] == package.num_bytes
        assert largest_gap(models[1], await generate_all(again, 4)) < LARGEST_GAP

        wrong = packer.write(lambda: tensors(models[0], adapted=True), version=32, probe=probe_of(models[1]))
        (process,) = again.process_ids()
        with pytest.raises(
            EngineError, match="after version 32 was published its logprobs are .* engine.probe_gap=0.2"
        ):
            await exchange(again, packer, addressed_to(wrong, engine=0, start=1))
        assert not psutil.pid_exists(process)
    finally:
        await again.close()
