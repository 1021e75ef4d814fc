"""What computes is taken out of a candidate's process, and what may be called stays; real workers, one each."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from sandbox.config import JudgeConfig
from sandbox.judge.candidate_side import CandidateSide
from sandbox.judge.code_gate import CodeGate
from sandbox.judge.code_trap import executable
from sandbox.judge.rejection import RejectedError
from sandbox.judge.spec import DeviceSpec
from sandbox.judge.workers import Workers
from sandbox.types import Outcome

MAPS_CODE = """
import ctypes, os, threading
libc = ctypes.CDLL(None, use_errno=True)
libc.mmap.restype = ctypes.c_void_p
libc.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int, ctypes.c_int, ctypes.c_int, ctypes.c_long]
libc.mprotect.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]
def code(fd=-1, flags=0x22): return libc.mmap(None, 4096, 5, flags, fd, 0) not in (None, 2**64 - 1)
library = open('/bin/true', 'rb')
def turn(): return libc.mprotect(libc.mmap(None, 4096, 3, 0x22, -1, 0), 4096, 5) == 0
"""
ALLOWED = """
import threading
import torch
TYPES = [torch.float32, torch.float64, torch.float16, torch.bfloat16, torch.int64, torch.int8, torch.bool,
         torch.complex64]
x = torch.empty(64, 96)

def with_type(source):
    a, b = torch.zeros(33, 65, 129, dtype=source), torch.ones(33, 65, 129, dtype=source)
    torch.full((5, 3), 2, dtype=source).fill_(1); torch.empty_like(a).copy_(b); a.new_empty(3, 4); a.new_zeros(3)
    for view in (a.transpose(0, 2), a[:, ::2], a.permute(1, 2, 0), a[0].expand(7, 65, 129), a.flatten()[3:]):
        view.contiguous(); view.clone(); view.reshape(-1); torch.empty(view.shape, dtype=source).copy_(view)
    for target in TYPES[:-1]:
        if not source.is_complex:
            a.to(target); a.transpose(0, 2).to(target); b[:, ::3].to(target)
    a[0].copy_(b[1]); a[1:, :, ::2] = b[1:, :, ::2]; a.zero_(); b.view(-1)[0].item(); a.split(3); a.unbind(0)
    torch.chunk(a, 3)
    if source.is_complex:
        a.real.clone(); torch.view_as_real(a).clone()

def forward():
    for source in TYPES:
        with_type(source)
    torch.empty(4, 8, 16, 16).contiguous(memory_format=torch.channels_last).contiguous()
    x.resize_(128, 96); torch.as_strided(x, (4, 4), (1, 4)).clone(); x.unfold(0, 2, 1).contiguous(); x.diagonal().clone()

def allowed():
    forward()
    thread = threading.Thread(target=forward); thread.start(); thread.join()
"""


@pytest.fixture(scope="module")
def workers(tmp_path_factory) -> Iterator[Workers]:
    config = JudgeConfig(baseline_dir=tmp_path_factory.mktemp("baselines"))
    workers = Workers(config, DeviceSpec(cores=sorted(os.sched_getaffinity(0))))
    workers.wait_ready()
    yield workers
    workers.close()


CLASS = """
import torch
class ModelNew(torch.nn.Module):
    def __init__(self, step):
        super().__init__()
        if step: globals()[step]()
"""


class Loaded:
    """A candidate's process whose model_new.py is `text`, and where the operators of torch are open (as in the paper's
    protocol)."""

    def __init__(self, workers: Workers, folder: Path, text: str) -> None:
        for each in (folder, *folder.parents[:2]):
            each.chmod(each.stat().st_mode | 0o055)
        path = folder / "model_new.py"
        path.write_text(text + CLASS)
        self._context = workers.pair()
        self.pair = self._context.__enter__()
        self._side = CandidateSide(self.pair.candidate, 20, "paper", code=self.pair.code)
        message = {"op": "load", "protocol": "paper", "extension_module": "", "shared_object": "", "interface": ""}
        self._side.ask(message | {"model_new": str(path)}, "loading")
        self.call("")

    def call(self, function: str) -> None:
        """Raises RejectedError where it fails."""
        init = {"kind": "list", "value": [{"kind": "str", "value": function}]}
        message = {"op": "construct", "init": init, "weights": [], "init_tensors": [], "seed": 0}
        self._side.ask(message, "calling")

    def spring(self, own: str = "/none/extension.so") -> None:
        assert self.pair.code is not None
        self.pair.code.spring(own, lambda message: self._side.ask(message, "replacing"))

    def __enter__(self) -> Loaded:
        return self

    def __exit__(self, *exc: object) -> None:
        self._context.__exit__(None, None, None)


def test_what_allocates_views_and_copies_runs_as_before(workers: Workers, tmp_path: Path) -> None:
    with Loaded(workers, tmp_path, ALLOWED) as loaded:
        before = len(executable(loaded.pair.candidate.pid))
        loaded.spring()
        assert len(executable(loaded.pair.candidate.pid)) > before + 100
        loaded.call("allowed")


@pytest.mark.parametrize(
    "expression",
    [
        "x @ x",
        "torch.nn.functional.conv2d(x.view(1, 4, 64, 64), x.view(-1)[:144].view(4, 4, 3, 3))",
        "torch.tanh(x)",
        "x + x",
        "torch.softmax(x, 1)",
        "torch.nn.functional.gelu(x)",
    ],
)
def test_what_computes_is_a_refusal_though_operators_are_open(workers: Workers, tmp_path: Path, expression) -> None:
    text = f"import torch\nx = torch.ones(128, 128)\ndef compute(): {expression}\n"
    with Loaded(workers, tmp_path, text) as loaded:
        loaded.call("compute")
        loaded.spring()
        with pytest.raises(RejectedError, match="of torch's libraries that computes") as caught:
            loaded.call("compute")
    assert caught.value.outcome is Outcome.REFUSED


def test_memory_becomes_code_before_and_never_after(workers: Workers, tmp_path: Path) -> None:
    if not CodeGate.is_possible():
        pytest.skip("descriptors of other processes cannot be taken here")
    checks = """
def before():
    if not (code() and turn() and code(library.fileno(), 2)): raise RuntimeError("it may not")
def after():
    if code() or turn() or code(library.fileno(), 2): raise RuntimeError("it may")
    traps = next(int(fd) for fd in os.listdir('/proc/self/fd') if 'traps' in os.readlink(f'/proc/self/fd/{fd}'))
    for end in (lambda: os.close(traps), lambda: os.dup2(library.fileno(), traps)):
        try: end()
        except PermissionError: continue
        raise RuntimeError("the file of traps can be replaced")
    if code(traps, 0x22) or not code(traps, 2): raise RuntimeError("only traps may be mapped")
    seen = []
    thread = threading.Thread(target=lambda: seen.append(code() or turn())); thread.start(); thread.join()
    if seen != [False]: raise RuntimeError("a thread may")
"""
    with Loaded(workers, tmp_path, MAPS_CODE + checks) as loaded:
        loaded.call("before")
        loaded.spring()
        assert not [each for each in executable(loaded.pair.candidate.pid) if not each.path]
        loaded.call("after")


@pytest.mark.parametrize(
    ("text", "word"),
    [
        # nothing is replaced
        (
            "import sandbox.judge.runner\ndef cheat(): sandbox.judge.runner.replace_code = lambda *given: None\n",
            "torch",
        ),
        # while the supervisor looks, code is mapped again
        (
            MAPS_CODE
            + "def cheat(): threading.Thread(target=lambda: [code() for _ in range(20000)], daemon=True).start()\n",
            "",
        ),
    ],
)
def test_a_process_that_does_otherwise_than_it_is_told_is_refused(
    workers: Workers, tmp_path: Path, text: str, word: str
) -> None:
    with Loaded(workers, tmp_path, text) as loaded:
        loaded.call("cheat")
        with pytest.raises(RejectedError, match=f"code that it may not run, in .*{word}"):
            loaded.spring()


def test_code_that_was_written_over_is_replaced_whoevers_it_is(workers: Workers, tmp_path: Path) -> None:
    text = (
        MAPS_CODE
        + """
import re
def overwrite():
    at = next(line for line in open('/proc/self/maps') if 'r-xp' in line and '/libm' in line)
    start = int(at.split('-')[0], 16)
    libc.mprotect(start, 4096, 3); ctypes.memset(start + 4000, 0, 1); libc.mprotect(start, 4096, 5)
"""
    )
    with Loaded(workers, tmp_path, text) as loaded:
        loaded.call("overwrite")
        changed = [each for each in executable(loaded.pair.candidate.pid, with_changes=True) if each.changed]
        assert [Path(each.path).name for each in changed] == [Path(changed[0].path).name]
        loaded.spring()
        at = {each.start: each.path for each in executable(loaded.pair.candidate.pid)}
        assert at[changed[0].start].startswith("/memfd:traps")
