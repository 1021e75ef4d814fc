"""What an author reads of compute-sanitizer's output; the tool itself runs in tests/sandbox/gpu."""

from __future__ import annotations

from sandbox.judge.sanitize import _report, run
from sandbox.judge.spec import DeviceSpec
from sandbox.types import Artifact, Task

FAULT = """========= COMPUTE-SANITIZER
========= Invalid __global__ write of size 4 bytes
=========     at chain_kernel(const float *, float *, long, float)+0x1d0 in k.cu:37
=========     by thread (255,0,0) in block (16383,0,0)
=========     Saved host backtrace up to driver entry point at kernel launch time
=========         Host Frame:chain [0x9e2] in extension.so
=========
========= ERROR SUMMARY: 1 error
"""


def test_a_fault_is_shown_with_its_line_and_without_the_hosts_frames():
    found = _report(9, FAULT)
    assert not found.clean and "Invalid __global__ write" in found.text and "k.cu:37" in found.text
    assert "Host Frame" not in found.text and "backtrace" not in found.text


def test_silence_is_clean_only_where_the_program_ran_to_its_end():
    summary = "========= COMPUTE-SANITIZER\n========= ERROR SUMMARY: 0 errors\n"
    assert _report(0, summary).clean
    assert "could not be run" in _report(1, "Traceback: KeyError\n" + summary).text
    assert "could not be run" in _report(127, "no such file\n").text
    assert "was not done after" in _report(None, "========= COMPUTE-SANITIZER\n").text


def test_a_machine_without_the_tool_says_so(tmp_path, monkeypatch):
    monkeypatch.setenv("PATH", str(tmp_path))
    artifact, spec = Artifact(sha256="", arch="", shared_object=b""), DeviceSpec(kind="cuda", cores=[0], visible="0")
    found = run(Task(task_id="t", code=""), artifact, tmp_path, "cuda_kernels", spec, None)
    assert not found.clean and "no compute-sanitizer" in found.text
