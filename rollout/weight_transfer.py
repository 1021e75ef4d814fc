"""vLLM's side of publishing weights: a transfer engine that reads safetensors files from shared memory.

It runs inside vLLM's worker. vLLM finds it through the entry point `jaxagent = rollout.weight_transfer:register` of
the group `vllm.general_plugins`, so the project has to be installed (`pip install -e .`) in vLLM's environment.
"""

from __future__ import annotations

import hashlib
import mmap
import multiprocessing
import os
import signal
import threading
from collections.abc import Iterator
from dataclasses import dataclass
from multiprocessing.process import BaseProcess
from typing import Any

import safetensors
import torch
from vllm.distributed.weight_transfer import WeightTransferEngineFactory
from vllm.distributed.weight_transfer.base import (
    WeightTransferEngine,
    WeightTransferInitInfo,
    WeightTransferUpdateInfo,
)
from vllm.model_executor.layers.quantization.base_config import QuantizeMethodBase
from vllm.model_executor.model_loader.reload import finalize_layerwise_reload, initialize_layerwise_reload

from rollout.weights import WeightsError

BACKEND = "jaxagent_shared_memory"

REJECTED = "weights rejected before loading"
"""Begins the message of every refusal after which the old weights are still whole."""


def register() -> None:
    """Adds the backend to vLLM's registry; called by vLLM in each of its processes, possibly more than once."""
    if BACKEND in WeightTransferEngineFactory._registry:
        return
    WeightTransferEngineFactory.register_engine(BACKEND, SharedMemoryTransferEngine)
    parent = multiprocessing.parent_process()
    if parent is not None and multiprocessing.current_process().name.startswith("EngineCore"):
        threading.Thread(target=_end_with, args=(parent, os.getppid()), name="end-with-parent", daemon=True).start()


def _end_with(parent: BaseProcess, parent_pid: int) -> None:
    """vLLM's engine process outlives a parent that is killed, memory and all; ours does not."""
    while os.getppid() == parent_pid:
        parent.join(timeout=1.0)
    os.kill(os.getpid(), signal.SIGKILL)


@dataclass
class SharedMemoryInitInfo(WeightTransferInitInfo):
    """Nothing to agree on: the files are found by path."""


@dataclass
class SharedMemoryUpdateInfo(WeightTransferUpdateInfo):
    """One whole version. `files` holds mappings with path, sha256 and num_bytes, as of WeightsFile."""

    version: int
    files: list[dict[str, Any]]


class SharedMemoryTransferEngine(WeightTransferEngine[SharedMemoryInitInfo, SharedMemoryUpdateInfo]):
    """Checks a version's bytes, then loads them in checkpoint format, layer by layer.

    The layerwise reload is needed: once loaded, vLLM keeps layers in the layout of its kernels (on CPU the linear
    layers are packed and their parameters emptied), and only the reload brings back parameters that can be loaded.
    """

    init_info_cls = SharedMemoryInitInfo
    update_info_cls = SharedMemoryUpdateInfo

    def init_transfer_engine(self, init_info: SharedMemoryInitInfo) -> None:
        del init_info
        self.received: dict[int, str] = {}

    def start_weight_update(self) -> None:
        # Nothing is touched before every byte has been checked: see receive_weights.
        self._reloading = False

    def update_weights(self, update_info: dict[str, Any]) -> None:
        # The base class synchronises torch.accelerator afterwards, which a CPU does not have.
        self.receive_weights(self.parse_update_info(update_info))
        if self.device.type != "cpu":
            torch.accelerator.synchronize()

    def receive_weights(self, update_info: SharedMemoryUpdateInfo) -> None:
        """Raises WeightsError, with the old weights untouched, when the bytes are not the announced ones."""
        for file in update_info.files:
            _check_file(update_info.version, **file)
        self._reloading = True
        initialize_layerwise_reload(self.model)
        model: Any = self.model  # load_weights is vLLM's addition to nn.Module
        model.load_weights(_named_tensors(file["path"] for file in update_info.files))
        self.received[update_info.version] = hashlib.sha256(
            "".join(file["sha256"] for file in update_info.files).encode()
        ).hexdigest()

    def finish_weight_update(self) -> None:
        if self._reloading:
            finalize_layerwise_reload(self.model, self.model_config)
            _process_tied_layers(self.model)
            self._reloading = False

    def shutdown(self) -> None:
        """Holds nothing beyond a call."""


def _process_tied_layers(model: torch.nn.Module) -> None:
    """Prepares layers again that only share another layer's weights (an output layer tied to the embedding).

    No weights arrive under their own name, so the reload leaves them as they are. On CPU such a layer computes with a
    packed copy of the shared weights: without this it would go on with the old ones, silently.
    """
    owners: dict[int, torch.nn.Module] = {}
    for module in model.modules():
        weight, method = getattr(module, "weight", None), getattr(module, "quant_method", None)
        if not isinstance(weight, torch.Tensor) or weight.numel() == 0:
            continue
        if owners.setdefault(weight.data_ptr(), module) is not module and isinstance(method, QuantizeMethodBase):
            method.process_weights_after_loading(module)


def _check_file(version: int, path: str, sha256: str, num_bytes: int) -> None:
    try:
        with open(path, "rb") as stream, mmap.mmap(stream.fileno(), 0, access=mmap.ACCESS_READ) as view:
            received_bytes, received = len(view), hashlib.sha256(view).hexdigest()
    except (OSError, ValueError) as error:
        raise WeightsError(f"{REJECTED}: version {version}: {path} cannot be read ({error})") from error
    if (received_bytes, received) != (num_bytes, sha256):
        raise WeightsError(
            f"{REJECTED}: version {version}: {path} holds {received_bytes} bytes with sha256 {received}, announced "
            f"were {num_bytes} bytes with sha256 {sha256}"
        )


def _named_tensors(paths: Iterator[str]) -> Iterator[tuple[str, torch.Tensor]]:
    for path in paths:
        with safetensors.safe_open(path, framework="pt") as tensors:
            for name in tensors.keys():  # noqa: SIM118 (not a mapping)
                yield name, tensors.get_tensor(name)
