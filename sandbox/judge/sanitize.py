"""A candidate once under NVIDIA's compute-sanitizer: a tool for its author, no part of any verdict.

    judge ─► launcher (confines itself, becomes) ─► compute-sanitizer ─► python: model.py's inputs into ModelNew

Everything runs in one process of the candidate's user, without torch's caching allocator, so that a step outside of a
tensor is a step outside of an allocation.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

from sandbox.judge.spec import DeviceSpec
from sandbox.toolchains.process import wait_or_kill
from sandbox.types import Artifact, Sanitized, Task

TIMEOUT_S = 240.0
_MAX_CHARACTERS, _MAX_ERRORS = 3000, 3
_PROGRAM = Path(__file__).with_name("sanitized.py")
_NOISE = re.compile(r"^=========\s+(Saved host backtrace|Host Frame|\s*in |Device Frame:.*cuda_runtime)|^========= *$")
_SUMMARY = re.compile(r"ERROR SUMMARY: (\d+) error")


def run(task: Task, artifact: Artifact, scratch: Path, module: str, spec: DeviceSpec, uid: int | None) -> Sanitized:
    """`scratch` holds model_new.py and extension.so; model.py and the interface are added to it."""
    tool = shutil.which("compute-sanitizer")
    if tool is None:
        return Sanitized(clean=False, text="there is no compute-sanitizer where the judge runs; nothing was looked at")
    (scratch / "model.py").write_text(task.code)
    (scratch / "interface.json").write_text(artifact.interface)
    own = scratch / "tmp"
    own.mkdir()
    if uid is not None:
        os.chown(own, uid, uid)
    command = [sys.executable, "-I", "-B", str(_PROGRAM), "launch", json.dumps({"cores": spec.cores, "uid": uid}), tool]
    command += ["--tool", "memcheck", "--print-limit", str(_MAX_ERRORS), "--error-exitcode", "9"]
    command += [sys.executable, "-I", "-B", str(_PROGRAM), "call", str(scratch), module]
    return _report(*_run(command, own, spec))


def _run(command: list[str], folder: Path, spec: DeviceSpec) -> tuple[int | None, str]:
    """Exit status (None: past its time) and output."""
    kept = {name: os.environ[name] for name in ("PATH", "LD_LIBRARY_PATH") if name in os.environ}
    environment = kept | {
        "HOME": str(folder),
        "TMPDIR": str(folder),
        "LANG": "C.UTF-8",
        "CUDA_VISIBLE_DEVICES": spec.visible,
        "CUDA_DEVICE_ORDER": "PCI_BUS_ID",
        "PYTORCH_NO_CUDA_MEMORY_CACHING": "1",
    }
    with open(folder.parent / "sanitizer.txt", "w+b") as output:
        process = subprocess.Popen(
            command, env=environment, stdin=subprocess.DEVNULL, stdout=output, stderr=subprocess.STDOUT, cwd=folder,
            start_new_session=True,
        )  # fmt: skip
        status = wait_or_kill(process, timeout_s=TIMEOUT_S)
        output.seek(0)
        return status, output.read(1 << 20).decode("utf-8", "replace")


def _report(status: int | None, output: str) -> Sanitized:
    lines = [line for line in output.splitlines() if not _NOISE.match(line)]
    text = "\n".join(lines)
    text = text if len(text) <= _MAX_CHARACTERS else text[:_MAX_CHARACTERS] + "…"
    summary = _SUMMARY.search(output)
    if status is None:
        return Sanitized(clean=False, text=f"compute-sanitizer was not done after {TIMEOUT_S:g} s\n{text}")
    if summary is None or (status != 0 and summary[1] == "0"):
        return Sanitized(clean=False, text=f"the candidate could not be run under compute-sanitizer:\n{text}")
    if summary[1] == "0":
        return Sanitized(clean=True, text="compute-sanitizer (memcheck) found nothing in one call")
    return Sanitized(clean=False, text=text)
