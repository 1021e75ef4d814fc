"""The zygote's own life: imports torch, warms up, and forks workers when it is told to.

It never runs a task's or a candidate's code and never starts an OpenMP pool, so every fork begins alike. It ends, and
its workers with it, when the process that started it goes away.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import socket
import sys
import time
from pathlib import Path
from typing import Any

_ROOT = Path(__file__).resolve().parents[2]
_REAPED_S = 25.0
"""For a killed worker to end; the supervisor waits a little longer."""


def main(kind: str, device: str, fd: int) -> None:
    """`kind` as of zygote.Zygote; `fd`: of the socket to the supervisor."""
    from sandbox.judge import hygiene, oracle, runner
    from sandbox.judge.channel import Channel, ChannelClosedError
    from sandbox.taskcheck import serving

    began = time.monotonic()
    hygiene.die_with_parent()
    channel = Channel(socket.socket(fileno=fd))
    _warm_up(kind, device)
    isolated = hygiene.isolate_network() if kind != "compile" else False
    num_tasks = len(os.listdir("/proc/self/task"))
    if num_tasks != 1:
        channel.send({"error": f"{num_tasks} threads are running after the warm-up; a fork needs exactly one"})
        return
    channel.send({"seconds": time.monotonic() - began, "network_isolated": isolated})
    serve = {"oracle": oracle.serve, "runner": runner.serve, "probe": serving.serve}
    while True:
        try:
            message = channel.receive()
        except ChannelClosedError:
            return
        fds = channel.take_fds()
        if message["op"] == "reap":
            channel.send({"status": _reap(message["pid"])})
            continue
        pid = os.fork()
        if pid == 0:
            _child(serve[message["role"]], device, message["bounds"], fds)
        for descriptor in fds:
            os.close(descriptor)
        channel.send({"pid": pid})


def _child(serve: Any, device: str, bounds: dict[str, Any], fds: list[int]) -> None:
    """Life of a worker, from fork to exit."""
    status = 1
    try:
        from sandbox.judge import hygiene
        from sandbox.judge.channel import Channel

        os.setsid()
        if len(fds) > 1:
            os.dup2(fds[1], 1)
            os.dup2(fds[1], 2)
        hygiene.confine(hygiene.Bounds(**bounds), keep=[fds[0]])
        import torch

        torch.set_num_threads(len(bounds["cores"]))
        with contextlib.suppress(BrokenPipeError):
            serve(Channel(socket.socket(fileno=fds[0])), device)
        status = 0
    finally:
        os._exit(status)


def _reap(pid: int) -> int | None:
    """The status of a child that has ended, None where it has not yet."""
    done, status = os.waitpid(pid, os.WNOHANG)
    return status if done == pid else None


def _warm_up(kind: str, device: str) -> None:
    """Does once what every worker would repeat: lazy imports, and but for `judge` a first torch.compile.

    One thread, so that no OpenMP pool exists when workers are forked. The imports also spare workers, who run as
    another user, reading a Python installation that this user may not be allowed to read.
    """
    import collections  # noqa: F401
    import enum  # noqa: F401
    import gc
    import itertools  # noqa: F401

    import torch

    import sandbox.bindings
    import sandbox.judge.gpu  # noqa: F401
    from sandbox.judge.observe import OperatorRecord

    torch.set_num_threads(1)
    layer = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.LayerNorm(4)).eval()
    with torch.no_grad(), OperatorRecord():
        layer(torch.randn(2, 4))
    if kind != "judge":
        _warm_up_compiler(layer, device)
    gc.collect()
    gc.freeze()  # so that a worker's collector does not touch, and thereby copy, all that it inherits


def _warm_up_compiler(layer: Any, device: str) -> None:
    """TorchInductor's imports and a first compile. With a GPU in sight the imports alone start the CUDA driver, which
    does not survive a fork: there every worker has them to itself."""
    import torch
    import tqdm

    tqdm.tqdm.monitor_interval = 0  # its monitor thread would not survive the fork
    if device == "cuda":
        return
    import torch._inductor.compile_fx

    _check_vector_instructions(Path(os.environ["TORCHINDUCTOR_CACHE_DIR"]))
    with torch.no_grad():
        torch.compile(layer)(torch.randn(2, 4))
    torch._dynamo.reset()


def _check_vector_instructions(cache_dir: Path) -> None:
    """TorchInductor's own trial of the processor's vector instructions, once a machine.

    It compiles and loads a program for each set, in subprocesses that import torch, in every process anew. Where all
    sets that the processor has passed once, later zygotes tell it so and the same set is picked.
    """
    from torch._inductor import config, cpu_vec_isa

    from sandbox.baselines import machine_fingerprint

    passed = cache_dir / f"vector-{hashlib.sha256(machine_fingerprint().encode()).hexdigest()[:16]}"
    if not passed.exists():
        flags = cpu_vec_isa.x86_isa_checker()
        possible = [
            isa for isa in cpu_vec_isa.supported_vec_isa_list if all(flag in flags for flag in str(isa).split())
        ]
        if not possible or cpu_vec_isa.valid_vec_isa_list() != possible:
            return
        passed.touch()
    config.cpp.vec_isa_ok = True


if __name__ == "__main__":
    sys.path.insert(0, str(_ROOT))
    main(sys.argv[1], sys.argv[2], int(sys.argv[3]))
