"""Run as a file by sandbox.judge.sanitize: `launch` confines itself and becomes the tool, `call` is what it watches."""

from __future__ import annotations

import fcntl
import json
import os
import socket
import struct
import sys
import types
from pathlib import Path

_ROOT = Path(__file__).resolve().parents[2]
_SIOCSIFFLAGS, _IFF_UP = 0x8914, 0x1
_MEMORY_BYTES = 32 << 30
_CPU_S = 600


def launch(settings: str, *command: str) -> None:
    """Off the network but for a loopback, over which the sanitizer talks to what it watches; as another user."""
    from sandbox.judge.hygiene import Bounds, confine, isolate_network

    if isolate_network():
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as any_socket:
            fcntl.ioctl(any_socket, _SIOCSIFFLAGS, struct.pack("16sh14x", b"lo", _IFF_UP))
    known = json.loads(settings)
    confine(
        Bounds(
            cores=known["cores"],
            memory_bytes=_MEMORY_BYTES,
            uid=known["uid"],
            write_files=True,
            cpu_s=_CPU_S,
            device="cuda",
        ),
        keep=[],
    )
    os.execv(command[0], list(command))


def call(scratch: str, module: str) -> None:
    """One call of ModelNew on the task's own inputs, with the reference's weights."""
    import torch

    from sandbox.bindings import load_module

    folder = Path(scratch)
    interface = (folder / "interface.json").read_text()
    sys.modules[module] = load_module(module, folder / "extension.so", interface)
    task, new = _load(folder / "model.py"), _load(folder / "model_new.py")
    with torch.device("cuda"), torch.no_grad():
        model = task.Model(*task.get_init_inputs()).eval().cuda()
        candidate = new.ModelNew(*task.get_init_inputs()).eval().cuda()
        candidate.load_state_dict(model.state_dict())
        inputs = [value.cuda() if isinstance(value, torch.Tensor) else value for value in task.get_inputs()]
        candidate(*inputs)
    torch.cuda.synchronize()


def _load(path: Path) -> types.ModuleType:
    module = types.ModuleType(path.stem)
    sys.modules[path.stem] = module
    exec(compile(path.read_text(), str(path), "exec"), module.__dict__)
    return module


if __name__ == "__main__":
    sys.path.insert(0, str(_ROOT))
    {"launch": launch, "call": call}[sys.argv[1]](*sys.argv[2:])
