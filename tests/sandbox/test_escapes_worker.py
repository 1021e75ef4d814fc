"""Escapes in the candidate's worker, past all that refuses by text or symbols: a model_new.py does them by itself.

Each has to end as a verdict, and with the host as it was: nothing is left of the candidate's user, and the next worker
starts. What kernels do with machine code of their own is in redteam/.
"""

from __future__ import annotations

import os
import socket
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from sandbox.config import JudgeConfig
from sandbox.judge.candidate_side import CandidateSide
from sandbox.judge.hygiene import kill_user
from sandbox.judge.ownwork import refuse_observed
from sandbox.judge.rejection import RejectedError
from sandbox.judge.spec import DeviceSpec
from sandbox.judge.workers import Workers
from sandbox.types import Outcome

as_root = pytest.mark.skipif(os.getuid() != 0, reason="needs root: else the candidate has the judge's own user")
REFUSED, FAILED, LATE = Outcome.REFUSED, Outcome.RUNTIME_ERROR, Outcome.TIMEOUT
ESCAPES: dict[str, tuple[Outcome, str, str]] = {
    # name: (outcome, a word of the message, what model_new.py does)
    "fork": (REFUSED, "system call", "import os\nwhile True: os.fork()"),
    "a program": (REFUSED, "system call", "import subprocess\nsubprocess.run(['/bin/sh', '-c', 'true'])"),
    "zombie grandchildren": (REFUSED, "system call", "import os\nif not os.fork(): os.fork(), os._exit(0)"),
    "memory": (FAILED, "MemoryError", "kept = []\nwhile True: kept.append(bytearray(64 << 20))"),
    "threads": (
        FAILED,
        "start new thread",
        "import threading, time\nwhile True: threading.Thread(target=time.sleep, args=(99,), daemon=True).start()",
    ),
    "a file": (REFUSED, "for writing", "open('/tmp/escape', 'w').write('x' * 10**9)"),
    "many folders": (REFUSED, "os.mkdir", "import os\nfor index in range(10**6): os.mkdir(f'/tmp/escape{index}')"),
    "a link": (REFUSED, "os.symlink", "import os\nos.symlink('/etc/shadow', '/tmp/escape')"),
    "unnamed files": (FAILED, "PermissionError", "import os\nos.memfd_create('x')"),
    "memory of the judge": (FAILED, "PermissionError", "import os\nopen(f'/proc/{os.getppid()}/mem', 'rb').read(1)"),
    "variables of the judge": (FAILED, "PermissionError", "import os\nopen(f'/proc/{os.getppid()}/environ').read()"),
    "memory of the machine": (FAILED, "Error", "open('/dev/mem', 'rb').read(1)"),
    "settings of the kernel": (REFUSED, "for writing", "open('/proc/sys/kernel/core_pattern', 'w')"),
    "a signal": (REFUSED, "os.kill", "import os\nos.kill(os.getppid(), 9)"),
    "a signal to everybody": (REFUSED, "os.kill", "import os\nos.kill(-1, 9)"),
    "ptrace": (REFUSED, "system call", "import ctypes, os\nctypes.CDLL(None).ptrace(16, os.getppid(), 0, 0)"),
    "network": (REFUSED, "socket", "import socket\nsocket.socket().connect(('127.0.0.1', PORT))"),
    "another user": (REFUSED, "system call", "import os\nos.setuid(0)"),
    "namespaces": (REFUSED, "system call", "import ctypes\nctypes.CDLL(None).unshare(0x10000000)"),
    "output": (LATE, "no end", "while True: print('x' * 10000)"),
    "sleep": (LATE, "no end", "import signal, time\nsignal.pthread_sigmask(0, range(1, 65))\ntime.sleep(10**6)"),
    "a loop": (LATE, "no end", "while True: pass"),
}


@pytest.fixture(scope="module")
def workers(tmp_path_factory) -> Iterator[Workers]:
    config = JudgeConfig(baseline_dir=tmp_path_factory.mktemp("baselines"), memory_mb=512)
    workers = Workers(config, DeviceSpec(cores=sorted(os.sched_getaffinity(0))[:1]))
    workers.wait_ready()
    yield workers
    workers.close()


@pytest.fixture(scope="module")
def port() -> Iterator[int]:
    with socket.create_server(("127.0.0.1", 0)) as server:
        yield server.getsockname()[1]


def load(workers: Workers, folder: Path, text: str) -> tuple[RejectedError | None, int | None]:
    """What loading a model_new.py of that text comes to; and how many processes of its user there were afterwards."""
    folder.chmod(0o755)
    for parent in folder.parents[:2]:
        parent.chmod(parent.stat().st_mode | 0o055)
    path = folder / "model_new.py"
    path.write_text(text)
    rejection = None
    with workers.pair() as pair:
        side = CandidateSide(pair.candidate, 1.5, "hardened", observed=refuse_observed)
        message = {"op": "load", "protocol": "hardened", "extension_module": "", "shared_object": "", "interface": ""}
        try:
            side.ask(message | {"model_new": str(path)}, "loading model_new.py")
        except RejectedError as error:
            rejection = error
        uid = pair.uid
    return rejection, None if uid is None else kill_user(uid)


@as_root
@pytest.mark.parametrize("name", ESCAPES)
def test_an_escape_is_a_verdict_and_leaves_nothing(workers: Workers, port: int, tmp_path: Path, name: str) -> None:
    outcome, word, text = ESCAPES[name]
    began = time.monotonic()
    rejection, left = load(workers, tmp_path, text.replace("PORT", str(port)))
    assert rejection is not None and (rejection.outcome, word in rejection.message) == (outcome, True), rejection
    assert left == 0 and time.monotonic() - began < 10
    assert len(rejection.message) < 20_000
    assert not list(Path("/tmp").glob("escape*"))
    assert load(workers, tmp_path, "x = 1") == (None, 0)
