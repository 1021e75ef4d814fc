from __future__ import annotations

import contextlib
import json
import socket
import subprocess
import threading
from pathlib import Path

import pytest

from sandbox.skill import lay_out, load_skill
from sandbox.types import Task


@pytest.fixture
def workdir(tmp_path):
    # longer than the 107 bytes that the path of a unix socket may have
    path = tmp_path / ("long-" * 25) / "workdir"
    lay_out(load_skill("cpp_agent"), Task(task_id="t", code=""), path)
    (path / ".service").mkdir()
    return path


def answering(workdir: Path, reply: bytes) -> list[bytes]:
    """A service that takes one request and sends `reply`; returns the list the request is put into."""
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    with contextlib.chdir(workdir / ".service"):
        listener.bind("sock")
    listener.listen()
    requests: list[bytes] = []

    def serve() -> None:
        with listener, listener.accept()[0] as connection:
            requests.append(connection.makefile("rb").readline())
            connection.sendall(reply)

    threading.Thread(target=serve, daemon=True).start()
    return requests


def run(workdir: Path, *command: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(command, cwd=workdir, capture_output=True, text=True, timeout=60)


@pytest.mark.parametrize(
    ("command", "sent"),
    [
        (["python3", "utils/verification.py"], "verify"),
        (["python3", "utils/profiling.py"], "profile"),
        (["python3", "utils/compile.py"], "compile"),
        (["bash", "utils/compile.sh"], "compile"),
    ],
)
def test_a_client_sends_one_line_and_prints_the_answer(workdir, command, sent):
    requests = answering(workdir, json.dumps({"ok": True, "text": "correct\nreward 3 …"}).encode() + b"\n")
    done = run(workdir, *command)
    assert (done.returncode, done.stdout) == (0, "correct\nreward 3 …\n")
    assert [json.loads(request) for request in requests] == [{"command": sent}]


def test_a_negative_answer_is_exit_status_1(workdir):
    answering(workdir, b'{"ok": false, "text": "wrong: output 0 differs"}\n')
    done = run(workdir, "python3", "utils/verification.py")
    assert (done.returncode, done.stdout) == (1, "wrong: output 0 differs\n")


@pytest.mark.parametrize("reply", [b"", b'{"ok": true', b"[]\n", b"nonsense\n"])
def test_an_answer_that_is_none_is_told_apart_from_a_verdict(workdir, reply):
    answering(workdir, reply)
    done = run(workdir, "python3", "utils/verification.py")
    assert done.returncode == 3 and done.stdout == "" and "says nothing about your kernel" in done.stderr


def test_without_a_service_the_client_says_so(workdir):
    done = run(workdir, "python3", "utils/profiling.py")
    assert done.returncode == 3 and "profile: no answer from the judge" in done.stderr
