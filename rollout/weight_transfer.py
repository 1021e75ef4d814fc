"""vLLM's side of publishing weights: a transfer engine of our own, which runs inside vLLM's worker.

vLLM, 0.26 and 0.32 alike, finds it through the entry point `jaxagent = rollout.weight_transfer:register` of the group
`vllm.general_plugins`, so the project has to be installed (`pip install -e .`) in vLLM's environment.
"""

from __future__ import annotations

import multiprocessing
import os
import signal
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from multiprocessing.process import BaseProcess
from typing import Any

import torch
from vllm.distributed.weight_transfer import WeightTransferEngineFactory
from vllm.distributed.weight_transfer.base import (
    WeightTransferEngine,
    WeightTransferInitInfo,
    WeightTransferUpdateInfo,
)
from vllm.model_executor.layers.quantization.base_config import QuantizeMethodBase
from vllm.model_executor.model_loader.reload import finalize_layerwise_reload, initialize_layerwise_reload

from rollout.receiving import Receiver

BACKEND = "jaxagent"


def register() -> None:
    """Adds the backend to vLLM's registry; called by vLLM in each of its processes, possibly more than once."""
    if BACKEND in WeightTransferEngineFactory._registry:
        return
    WeightTransferEngineFactory.register_engine(BACKEND, TransferEngine)
    parent = multiprocessing.parent_process()
    if parent is not None and multiprocessing.current_process().name.startswith("EngineCore"):
        threading.Thread(target=_end_with, args=(parent, os.getppid()), name="end-with-parent", daemon=True).start()


def _end_with(parent: BaseProcess, parent_pid: int) -> None:
    """vLLM's engine process outlives a parent that is killed, memory and all; ours does not."""
    while os.getppid() == parent_pid:
        parent.join(timeout=1.0)
    os.kill(os.getpid(), signal.SIGKILL)


@dataclass
class InitInfo(WeightTransferInitInfo):
    """`version`: of the weights that were loaded at the start. `group`: to be joined, see rollout.broadcast."""

    version: int | None = None
    group: dict[str, Any] | None = None


@dataclass
class UpdateInfo(WeightTransferUpdateInfo):
    """One whole version: update_info() of a package, so files of a WeightsPackage or parts of a PackedPackage."""

    version: int
    base: str = ""
    files: list[dict[str, Any]] = field(default_factory=list)
    parts: list[dict[str, Any]] = field(default_factory=list)
    source: dict[str, Any] = field(default_factory=dict)


class TransferEngine(WeightTransferEngine[InitInfo, UpdateInfo]):
    """Checks a version's bytes, then loads them in checkpoint format, layer by layer.

    The layerwise reload is needed: once loaded, vLLM keeps layers in the layout of its kernels (on CPU the linear
    layers are packed and their parameters emptied), and only the reload brings back parameters that can be loaded.
    """

    init_info_cls = InitInfo
    update_info_cls = UpdateInfo

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._receiver = Receiver(self.device, rank=self.parallel_config.rank)
        self._base = ""
        self._reloading = False
        self.report: dict[str, Any] = {}
        """Of the last update: version, checksum of what was received, bytes loaded, and where the time went."""

    def init_transfer_engine(self, init_info: InitInfo) -> None:
        if init_info.version is not None:
            self.report = {"version": init_info.version}
        if init_info.group is not None:
            self._receiver.join(init_info.group)

    def start_weight_update(self) -> None:
        # Nothing is touched before every byte has been checked: see receive_weights.
        self._reloading = False

    def update_weights(self, update_info: dict[str, Any]) -> None:
        # The base class synchronises torch.accelerator afterwards, which a CPU does not have.
        self.receive_weights(self.parse_update_info(update_info))

    def receive_weights(self, update_info: UpdateInfo) -> None:
        """Raises WeightsError, with the old weights untouched, when the bytes are not the announced ones."""
        has_base = update_info.base != "" and update_info.base == self._base
        received = self._receiver.receive(update_info, only_changed=has_base)
        began = time.perf_counter()
        self._base = ""  # until this is through, the model is no version of anything
        self._reloading = True
        initialize_layerwise_reload(self.model)
        model: Any = self.model  # load_weights is vLLM's addition to nn.Module
        model.load_weights(received.tensors)
        self._wait_for_device()
        self._next_base = update_info.base
        self.report = {
            "version": update_info.version,
            "checksum": received.checksum,
            "loaded_bytes": received.num_bytes,
            "receive_s": received.receive_s,
            "check_s": received.check_s,
            "load_s": time.perf_counter() - began,
        }

    def finish_weight_update(self) -> None:
        if not self._reloading:
            return
        began = time.perf_counter()
        finalize_layerwise_reload(self.model, self.model_config)
        _process_tied_layers(self.model)
        self._wait_for_device()
        self._reloading = False
        self._base = self._next_base
        self.report["finish_s"] = time.perf_counter() - began

    def shutdown(self) -> None:
        self._receiver.close()

    @staticmethod
    def trainer_send_weights(iterator: Iterator[Any], trainer_args: Any) -> None:
        """An abstract method of vLLM 0.26, which nothing here calls: our learner runs no code of vLLM."""
        raise NotImplementedError("weights are sent by rollout.weights and rollout.packed_writer, in the learner")

    def _wait_for_device(self) -> None:
        if self.device.type != "cpu":
            torch.accelerator.synchronize()


class WorkerExtension:
    """Becomes a base of vLLM's worker class (`worker_extension_cls`), so that collective_rpc finds its methods."""

    weight_transfer_engine: TransferEngine

    def jaxagent_weights_report(self) -> dict[str, Any]:
        return self.weight_transfer_engine.report


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
