"""A process that has torch imported and forks workers from itself in milliseconds.

It never runs a task's or a candidate's code and never starts an OpenMP pool, so every fork begins alike. It ends, and
its workers with it, when the process that started it goes away.

    supervisor --fork--> zygote --os.fork--> worker --channel--> supervisor
"""

from __future__ import annotations

import contextlib
import dataclasses
import hashlib
import os
import socket
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any, Literal

Kind = Literal["judge", "compile", "probe"]
_START_TIMEOUT_S = 180.0
_FORK_TIMEOUT_S = 20.0
_REAP_TIMEOUT_S, _REAP_PAUSE_S = 30.0, 0.001
_ROOT = Path(__file__).resolve().parents[2]


class Zygote:
    """The supervisor's handle on one zygote process.

    `judge` has torch; `compile` also has TorchInductor warmed up, which costs seconds and memory that a candidate has
    no use for; `probe` has that too, and is off the network like `judge`, since tasks that nobody has seen run there.
    """

    def __init__(self, kind: Kind, *, num_threads: int, cache_dir: Path, gpu: str = "") -> None:
        """`gpu`: DeviceSpec.visible; "" where models run on the CPU."""
        from sandbox.judge.channel import Channel

        self.kind = kind
        self._channel, theirs = Channel.pair()
        cache_dir.mkdir(parents=True, exist_ok=True)
        device = "cuda" if gpu else "cpu"
        command = [sys.executable, "-I", "-B", str(Path(__file__).resolve()), kind, device, str(theirs.fileno())]
        self._process = subprocess.Popen(
            command,
            pass_fds=[theirs.fileno()],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            cwd="/",
            env=_environment(num_threads, cache_dir) | (_gpu_environment(gpu, cache_dir) if gpu else {}),
            start_new_session=True,
        )
        theirs.close()
        self._ready = False
        self._lock = threading.Lock()

    @property
    def pid(self) -> int:
        return self._process.pid

    def wait_ready(self) -> None:
        """Raises DeviceError if the zygote cannot start."""
        with self._lock:
            if not self._ready:
                self._ask(None, _START_TIMEOUT_S)
                self._ready = True

    def fork(self, role: str, bounds: Any, *, stderr: int | None = None) -> tuple[int, Any]:
        """Pid and channel of a new worker. Raises DeviceError."""
        from sandbox.judge.channel import Channel

        self.wait_ready()
        ours, theirs = Channel.pair()
        fds = [theirs.fileno()] + ([stderr] if stderr is not None else [])
        try:
            with self._lock:
                reply = self._ask(
                    {"op": "fork", "role": role, "bounds": dataclasses.asdict(bounds)}, _FORK_TIMEOUT_S, fds
                )
        finally:
            theirs.close()
        return reply["pid"], ours

    def reap(self, pid: int) -> int:
        """Waits for the end of a worker that was killed or hung up; its exit status as of os.waitpid.

        Others can be forked meanwhile: the end of a CUDA context takes a while. Raises DeviceError.
        """
        from sandbox.types import DeviceError

        deadline = time.monotonic() + _REAP_TIMEOUT_S
        while time.monotonic() < deadline:
            with self._lock:
                status = self._ask({"op": "reap", "pid": pid}, _FORK_TIMEOUT_S)["status"]
            if status is not None:
                return status
            time.sleep(_REAP_PAUSE_S)
        raise DeviceError(f"process {pid} does not end although it was killed")

    def close(self) -> None:
        self._channel.close()
        try:
            self._process.wait(timeout=2)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        if self._process.stderr is not None:
            self._process.stderr.close()

    def _ask(self, message: dict[str, Any] | None, timeout_s: float, fds: list[int] | None = None) -> dict[str, Any]:
        from sandbox.judge.channel import ChannelClosedError, ChannelTimeoutError, ProtocolError
        from sandbox.types import DeviceError

        try:
            if message is not None:
                self._channel.send(message, fds=fds)
            reply = self._channel.receive(timeout_s)
        except (ChannelClosedError, ChannelTimeoutError, ProtocolError) as error:
            self._process.kill()
            _, stderr = self._process.communicate()
            raise DeviceError(
                f"the judge's {self.kind} process failed: {error}. Its last words: "
                f"{stderr.decode(errors='replace')[-800:].strip() or 'none'}"
            ) from error
        if "error" in reply:
            raise DeviceError(f"the judge's {self.kind} process: {reply['error']}")
        return reply


def _environment(num_threads: int, cache_dir: Path) -> dict[str, str]:
    """A fixed environment: what is set where the judge was started must not change what is measured."""
    threads = str(num_threads)
    return {
        "PATH": os.environ.get("PATH", "/usr/bin:/bin"),
        "LANG": "C.UTF-8",
        "HOME": "/nonexistent",
        "TMPDIR": "/tmp",
        "OMP_NUM_THREADS": threads,
        "MKL_NUM_THREADS": threads,
        "OPENBLAS_NUM_THREADS": "1",
        "TORCHINDUCTOR_CACHE_DIR": str(cache_dir),
        "TORCHINDUCTOR_COMPILE_THREADS": "1",
    }


def _gpu_environment(gpu: str, cache_dir: Path) -> dict[str, str]:
    """One GPU, whose driver is only started in workers: a process that has a CUDA context cannot be forked."""
    kept = ("LD_LIBRARY_PATH", "CUDA_HOME", "CUDA_MPS_PIPE_DIRECTORY", "CUDA_MPS_LOG_DIRECTORY", "TRITON_LIBCUDA_PATH")
    return {name: os.environ[name] for name in kept if name in os.environ} | {
        "CUDA_VISIBLE_DEVICES": gpu,
        "CUDA_DEVICE_ORDER": "PCI_BUS_ID",
        "CUDA_CACHE_DISABLE": "1",
        "PYTORCH_NVML_BASED_CUDA_CHECK": "1",
        "TRITON_HOME": str(cache_dir.parent),
        "TRITON_CACHE_DIR": str(cache_dir.parent / "triton"),
    }


def _main(kind: Kind, device: str, fd: int) -> None:
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


def _warm_up(kind: Kind, device: str) -> None:
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
    _main(sys.argv[1], sys.argv[2], int(sys.argv[3]))  # type: ignore[arg-type]
