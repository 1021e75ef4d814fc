"""What publishing costs on this machine, and how fast the engine samples; ends with one JSON line.

.venv/bin/python scripts/bench_publish.py MODEL [--transfer ipc|nccl|shared_memory] [--publishes 8] [--lora] [--cpu]

A learner and an engine in a process each, as in a run, while replies are being sampled. The first publishes, in which
buffers are made and functions compile, are not counted. MODEL is a folder of `jaxagent model fetch`.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import statistics
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from rollout.config import EngineConfig
from rollout.engine import VllmEngine
from rollout.packages import addressed_to, needs_sending
from rollout.types import EngineError, SamplingParams

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests" / "jaxagent" / "publishing"))
from learner_side import LearnerSide

WARM_UP = 2
LORA = ["--learner.lora.rank=16"]
SHOWN = ("pause_s", "quiesce_s", "transfer_s", "receive_s", "check_s", "load_s", "finish_s", "probe_s", "probe_gap")


def learner_of(arguments: argparse.Namespace, config: EngineConfig, folder: Path, *, lora: bool) -> LearnerSide:
    environment: dict[str, str | None] = {"JAX_PLATFORMS": "cpu" if arguments.cpu else None}
    overrides = [f"--engine.{name}={value}" for name, value in config.model_dump(exclude_defaults=True).items()]
    if not arguments.cpu:
        environment["CUDA_VISIBLE_DEVICES"] = "1" if arguments.transfer == "nccl" else "0"
        overrides += ["--gpus.learner=0.5", "--gpus.engine=0.5", "--gpus.learner_memory=0.3"]
    overrides += LORA if lora else []
    # A whole model that is moved much is none any more, and bfloat16 says of it what it likes.
    noise = 0.02 if lora else 0.0005
    return LearnerSide(arguments.model.resolve(), folder, overrides=overrides, environment=environment, noise=noise)


async def publish(engine: VllmEngine, learner: LearnerSide, which: int, version: int, start: int) -> dict[str, Any]:
    began = time.monotonic()
    package = await asyncio.to_thread(learner.write, which, version)
    written_s = time.monotonic() - began
    if not needs_sending(package):
        return await engine.publish(package) | {"write_s": written_s}
    package = addressed_to(package, engine=0, start=start)
    report, _ = await asyncio.gather(engine.publish(package), asyncio.to_thread(learner.send, package))
    return report | {"write_s": written_s}


async def keep_sampling(engine: VllmEngine, stop: asyncio.Event, *, concurrent: int) -> list[tuple[float, int]]:
    """(when it ended, its tokens) of every reply, so many at a time."""
    ended: list[tuple[float, int]] = []

    async def replies(number: int) -> None:
        while not stop.is_set():
            prompt = [100 + (number * 31 + k * 7) % 1000 for k in range(128)]
            reply = await engine.generate(prompt, SamplingParams(max_tokens=256))
            ended.append((time.monotonic(), len(reply.token_ids)))

    await asyncio.gather(*(replies(number) for number in range(concurrent)))
    return ended


async def measure(
    engine: VllmEngine, learner: LearnerSide, arguments: argparse.Namespace, first: int, start: int
) -> list[dict[str, Any]]:
    """Reports of the publishes that count, each amid sampling; `start` as of addressed_to."""
    stop, reports = asyncio.Event(), []
    for k in range(WARM_UP):
        await publish(engine, learner, k % 2, first + k, start)
    sampling = asyncio.ensure_future(keep_sampling(engine, stop, concurrent=arguments.concurrent))
    for k in range(arguments.publishes):
        await asyncio.sleep(arguments.apart_s)
        reports.append(await publish(engine, learner, k % 2, first + WARM_UP + k, start))
    stop.set()
    await sampling
    return reports


async def tokens_per_s(engine: VllmEngine, arguments: argparse.Namespace) -> float:
    """Of full-length replies without a publish, all started at once."""
    began = time.monotonic()
    replies = await asyncio.gather(
        *(
            engine.generate([100 + (n * 31 + k * 7) % 1000 for k in range(128)], SamplingParams(max_tokens=256))
            for n in range(2 * arguments.concurrent)
        )
    )
    return sum(len(reply.token_ids) for reply in replies) / (time.monotonic() - began)


def summary(reports: list[dict[str, Any]]) -> dict[str, Any]:
    """Median [smallest, largest] of each time."""
    found: dict[str, Any] = {"bytes": reports[-1]["num_bytes"], "loaded_bytes": reports[-1]["loaded_bytes"]}
    for name in (*SHOWN, "write_s"):
        values = [report[name] for report in reports if name in report]
        if values:
            found[name] = [round(v, 4) for v in (statistics.median(values), min(values), max(values))]
    return found


async def run(arguments: argparse.Namespace) -> dict[str, Any]:
    settings: dict[str, Any] = {"max_model_len": 1024, "weight_transfer": arguments.transfer, "dtype": "bfloat16"}
    if arguments.cpu:
        settings |= {"max_num_seqs": arguments.concurrent, "kv_cache_gib": 0.5}
    else:
        settings |= {"max_num_seqs": 512, "execution": arguments.execution, "gpu_memory_utilization": 0.35}
    config = EngineConfig.model_validate(settings)
    engine = VllmEngine(arguments.model, config)
    results: dict[str, Any] = {"transfer": arguments.transfer}
    with tempfile.TemporaryDirectory() as folder:
        # Learners start beside the engine, and wait.
        kinds = ("full", "lora") if arguments.lora else ("full",)
        learners = {kind: learner_of(arguments, config, Path(folder) / kind, lora=kind == "lora") for kind in kinds}
        try:
            results["engine_start_s"] = round(await engine.start(), 1)
            await tokens_per_s(engine, arguments)
            results["tokens_per_s"] = [round(await tokens_per_s(engine, arguments)) for _ in range(3)]
            for start, kind in enumerate(kinds):
                print(json.dumps(results), flush=True)
                results[kind] = summary(await measure(engine, learners[kind], arguments, 1 + 100 * start, start))
        except EngineError as error:
            results["error"] = str(error)
        finally:
            await engine.close()
            for learner in learners.values():
                learner.close()
    return results


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", type=Path)
    parser.add_argument("--transfer", choices=("shared_memory", "ipc", "nccl"), default="ipc")
    parser.add_argument("--publishes", type=int, default=8)
    parser.add_argument("--concurrent", type=int, default=256, help="replies being sampled meanwhile")
    parser.add_argument("--apart-s", type=float, default=1.0)
    parser.add_argument("--lora", action="store_true", help="a second learner that trains adapters")
    parser.add_argument("--execution", choices=["eager", "graphs", "compiled"], default="graphs", help="on a GPU")
    parser.add_argument("--cpu", action="store_true")
    results = asyncio.run(run(parser.parse_args()))
    print(json.dumps(results))
    sys.exit("error" in results)


if __name__ == "__main__":
    main()
