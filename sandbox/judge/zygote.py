"""The supervisor's handle on a process that has torch imported and forks workers from itself in milliseconds.

supervisor --fork--> zygote (zygote_process.py) --os.fork--> worker --channel--> supervisor
"""

from __future__ import annotations

import dataclasses
import os
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any, Literal

from sandbox.judge.channel import Channel, ChannelClosedError, ChannelTimeoutError, ProtocolError
from sandbox.judge.hygiene import Bounds
from sandbox.types import DeviceError

Kind = Literal["judge", "compile", "probe"]
_START_TIMEOUT_S = 180.0
_FORK_TIMEOUT_S = 20.0
_REAP_TIMEOUT_S, _REAP_PAUSE_S = 30.0, 0.001
_PROGRAM = Path(__file__).resolve().with_name("zygote_process.py")


class Zygote:
    """One zygote process.

    `judge` has torch; `compile` also has TorchInductor warmed up, which costs seconds and memory that a candidate has
    no use for; `probe` has that too, and is off the network like `judge`, since tasks that nobody has seen run there.
    """

    def __init__(self, kind: Kind, *, num_threads: int, cache_dir: Path, gpu: str = "") -> None:
        """`gpu`: DeviceSpec.visible; "" where models run on the CPU."""
        self.kind = kind
        self._channel, theirs = Channel.pair()
        cache_dir.mkdir(parents=True, exist_ok=True)
        device = "cuda" if gpu else "cpu"
        command = [sys.executable, "-I", "-B", str(_PROGRAM), kind, device, str(theirs.fileno())]
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

    def fork(self, role: str, bounds: Bounds, *, stderr: int | None = None) -> tuple[int, Channel]:
        """Pid and channel of a new worker. Raises DeviceError."""
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
