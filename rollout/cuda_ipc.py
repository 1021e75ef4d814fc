"""A buffer on a GPU, shown to another process on the same GPU without a copy (CUDA IPC), as plain values.

The owner keeps the buffer alive for as long as anybody may look at it; see rollout.packed_writer.
"""

from __future__ import annotations

from typing import Any

import torch
from torch.multiprocessing.reductions import rebuild_cuda_tensor, reduce_tensor

from rollout.packages import CUDA_IPC, WeightsError

_FIELDS = ("storage_handle", "storage_size_bytes", "storage_offset_bytes", "ref_counter_handle", "ref_counter_offset",
           "event_handle", "event_sync_required")  # fmt: skip
_POSITIONS = (7, 8, 9, 11, 12, 13, 14)  # of these fields among rebuild_cuda_tensor's arguments


def export_buffer(buffer: torch.Tensor) -> dict[str, Any]:
    """What open_buffer needs to see `buffer` [N] uint8: numbers and texts alone, so nothing has to be unpickled."""
    arguments: Any = reduce_tensor(buffer)[1]
    values = {name: arguments[position] for name, position in zip(_FIELDS, _POSITIONS, strict=True)}
    plain = {name: value.hex() if isinstance(value, bytes) else value for name, value in values.items()}
    return {"kind": CUDA_IPC, "gpu": gpu_id(buffer.device), "offset": arguments[3], "num_bytes": buffer.numel()} | plain


def open_buffer(source: dict[str, Any], device: torch.device) -> torch.Tensor:
    """[N] uint8 on `device`: the owner's own memory. Raises WeightsError where it lies on another GPU."""
    here = gpu_id(device)
    if source["gpu"] != here:
        raise WeightsError(
            f"the learner's weights lie on GPU {source['gpu']} and the engine runs on GPU {here}; "
            f"engine.weight_transfer=ipc needs both on one: let gpus.learner + gpus.engine be at most 1, or set "
            f"engine.weight_transfer to nccl"
        )
    opened = {name: bytes.fromhex(source[name]) if name.endswith("handle") else source[name] for name in _FIELDS}
    return rebuild_cuda_tensor(
        torch.Tensor,
        (source["num_bytes"],),
        (1,),
        source["offset"],
        torch.UntypedStorage,
        torch.uint8,
        device.index or 0,
        requires_grad=False,
        **opened,
    )


def gpu_id(device: torch.device) -> str:
    """The GPU's own identity, whatever number a process knows it by."""
    return str(torch.cuda.get_device_properties(device).uuid)
