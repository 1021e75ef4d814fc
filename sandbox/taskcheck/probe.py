"""TaskProber: runs a candidate task in processes of its own and brings back evidence of what it does.

    prober ── zygote (torch, TorchInductor; off the network) ── forks ──► eager worker    build, examine
                                                                    ├──► clock worker    build, time
                                                                    └──► compile worker  build, compile
Every worker is new, bounded in memory and time, and dead before its evidence is returned. The first two may write no
file and run as another user where this process may change it.
"""

from __future__ import annotations

import itertools
import logging
import os
import shutil
import sysconfig
import tempfile
import threading
import time
from pathlib import Path
from typing import Any

from sandbox.judge.hygiene import Bounds, free_uid
from sandbox.judge.spec import DeviceSpec
from sandbox.judge.worker import Worker, WorkerDiedError, WorkerReplyError, WorkerTimeoutError
from sandbox.judge.zygote import Zygote
from sandbox.taskcheck.config import ProbeConfig

_MAX_SERIES, _CALM = 3, 1.15
"""Of timed calls; upper over lower quartile below which there is no other."""
Evidence = dict[str, Any]
"""Facts by phase (build, examine, time, compile). A phase that failed holds `failure` {type, message, traceback}; one
that was ended holds `failure` of type Timeout or Died. `printed` and `touched` stand in every phase."""

logger = logging.getLogger(__name__)


class TaskProber:
    """One device. Eager runs are one at a time, on the device's cores; compilers work beside each other on one each.

    Safe to use from several threads. `close` ends its processes.
    """

    def __init__(self, config: ProbeConfig, spec: DeviceSpec) -> None:
        self._config, self._spec = config, spec
        self._compilers = itertools.count()
        self._quiet = threading.Lock()
        self._device = spec.kind
        self._folder = Path(tempfile.mkdtemp(prefix="jaxagent-probe-"))
        self._folder.chmod(0o755)
        self._may_change_user = os.geteuid() == 0
        self._readable = _readable_by_others()
        self._zygote = Zygote(
            "probe", num_threads=len(spec.cores), cache_dir=self._folder / "inductor", gpu=spec.visible
        )

    def close(self) -> None:
        self._zygote.close()
        shutil.rmtree(self._folder, ignore_errors=True)

    def eager(self, code: str) -> Evidence:
        """Phases build, examine and time. Raises DeviceError where a process of ours fails."""
        with self._quiet:
            return self._eager(code)

    def _eager(self, code: str) -> Evidence:
        cores = self._spec.cores
        evidence = self._phases(code, [("examine", {"slow_s": self._config.slow_ms / 1e3})], cores=cores)
        if _is_complete(evidence, "examine"):
            evidence["time"] = self._times(code)
        return evidence

    def _times(self, code: str) -> dict[str, Any]:
        """The calmest of a few series of calls, in a new process; or a failure.

        Each of its threads has a core of its own: the kernel leaves two on one for longer than a call takes.
        """
        config, taken = self._config, []
        with Worker(self._zygote, "probe", self._bounds(code, self._spec.cores, None)) as worker:
            for message in ({"op": "build", "code": code}, {"op": "warm", "warmup_s": config.warmup_ms / 1e3}):
                answer = _ask(worker, message, config.timeout_s)
                if "failure" in answer:
                    return answer
            while len(taken) < _MAX_SERIES and (not taken or _unrest(taken[-1]) > _CALM):
                worker.spread()
                taken.append(_ask(worker, {"op": "time", "budget_s": config.timing_ms / 1e3}, config.timeout_s))
                if "failure" in taken[-1]:
                    return taken[-1]
        return min(taken, key=_unrest)

    def compiled(self, code: str) -> Evidence:
        """Phases build and compile."""
        cores = self._spec.cores
        core = cores[next(self._compilers) % len(cores)]
        cache_dir = Path(tempfile.mkdtemp(prefix="compile-", dir=self._folder))
        try:
            return self._phases(code, [("compile", {"cache_dir": str(cache_dir)})], cores=[core], writable=cache_dir)
        finally:
            shutil.rmtree(cache_dir, ignore_errors=True)

    def _phases(
        self,
        code: str,
        phases: list[tuple[str, dict[str, Any]]],
        *,
        cores: list[int],
        writable: Path | None = None,
    ) -> Evidence:
        evidence: Evidence = {}
        with Worker(self._zygote, "probe", self._bounds(code, cores, writable)) as worker:
            for name, message in [("build", {"code": code}), *phases]:
                limit = self._config.compile_timeout_s if name == "compile" else self._config.timeout_s
                evidence[name] = _ask(worker, {"op": name, **message}, limit)
                if "failure" in evidence[name]:
                    break
        return evidence

    def _bounds(self, code: str, cores: list[int], writable: Path | None) -> Bounds:
        """A compiler reads Python's headers and a transformers task its modules: only as a user who may do so."""
        needs_files = writable is not None or "transformers" in code
        uid = free_uid() if self._may_change_user and (self._readable or not needs_files) else None
        if writable is not None and uid is not None:
            os.chown(writable, uid, uid)
        return Bounds(
            cores=cores,
            memory_bytes=self._config.memory_mb << 20,
            uid=uid,
            write_files=writable is not None,
            device=self._device,
        )


def _ask(worker: Worker, message: dict[str, Any], limit_s: float) -> dict[str, Any]:
    try:
        return worker.ask(message, deadline=time.monotonic() + limit_s)
    except WorkerTimeoutError:
        return {"failure": {"type": "Timeout", "message": f"no end after {limit_s:g} s", "traceback": ""}}
    except WorkerDiedError as error:
        return {"failure": {"type": "Died", "message": error.reason, "traceback": error.stderr[-1000:]}}
    except WorkerReplyError as error:
        return {"failure": {"type": error.kind, "message": error.message, "traceback": error.traceback}}


def _unrest(times: dict[str, Any]) -> float:
    """Upper over lower quartile."""
    return times["p75_ms"] / times["p25_ms"]


def _is_complete(evidence: Evidence, phase: str) -> bool:
    return phase in evidence and "deviations" in evidence[phase]


def _readable_by_others() -> bool:
    """Whether another user may read this Python and its packages."""
    readable = all(
        folder.stat().st_mode & 0o001
        for place in (sysconfig.get_paths()["include"], sysconfig.get_paths()["purelib"])
        for folder in (Path(place).resolve(), *Path(place).resolve().parents)
        if folder.exists()
    )
    if os.geteuid() == 0 and not readable:
        logger.warning(
            "Python lies where other users cannot read it (%s): torch.compile of candidate tasks runs as this user, "
            "bounded and off the network. Install Python outside of a home folder to run it as another",
            sysconfig.get_paths()["include"],
        )
    return readable
