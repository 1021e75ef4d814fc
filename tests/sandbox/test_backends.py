"""Every backend passes conformance.py; and what `process` alone promises. Those of the others have files of their own."""

from __future__ import annotations

import asyncio
import json
import logging
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import AsyncIterator
from pathlib import Path

import conformance
import pytest

from sandbox.backends import ShellSandbox, close_pools, open_sandbox
from sandbox.backends import process as process_backend
from sandbox.config import SandboxConfig
from sandbox.types import SandboxUnavailableError

LIMITS = {"disk_mb": 32, "memory_mb": 512, "pids": 64}
DOCKER = SandboxConfig(backend="docker", warm_containers=2, **LIMITS)
BUBBLEWRAP = SandboxConfig(backend="bubblewrap", **LIMITS)
needs_bubblewrap = pytest.mark.skipif(shutil.which("bwrap") is None, reason="bubblewrap is not installed")
BACKENDS = [
    pytest.param(SandboxConfig(backend="process", **LIMITS), id="process"),
    pytest.param(DOCKER, id="docker", marks=pytest.mark.docker),
    pytest.param(BUBBLEWRAP, id="bubblewrap", marks=needs_bubblewrap),
]


def lay_out(workdir: Path) -> Path:
    (workdir / "utils").mkdir(parents=True)
    (workdir / "kernels").mkdir()
    (workdir / "model.py").write_text("size = 4\n")
    (workdir / "utils" / "helper.py").write_text("print('helped')\n")
    return workdir


@pytest.fixture(scope="module", autouse=True)
def containers_go_when_the_tests_are_done():
    yield
    close_pools()


@pytest.fixture
async def box(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch) -> AsyncIterator[ShellSandbox]:
    monkeypatch.setenv("SECRET_OF_THE_TEST", "hunter2")
    box = await open_sandbox(request.param, lay_out(tmp_path / "task"))
    yield box
    await box.close()


@pytest.mark.parametrize("check", conformance.CHECKS, ids=lambda check: check.__name__)
@pytest.mark.parametrize("box", BACKENDS, indirect=True)
async def test_conformance(box: ShellSandbox, check) -> None:
    await check(box)


@pytest.mark.parametrize("box", BACKENDS[1:], indirect=True)
async def test_a_container_has_no_network_no_rights_and_nothing_to_write_but_its_workdir(box: ShellSandbox) -> None:
    run = conformance.run
    status = await run(box, "cat /proc/self/status")
    for field in ("CapInh", "CapPrm", "CapEff", "CapBnd", "CapAmb"):
        assert f"{field}:\t0000000000000000" in status
    assert "NoNewPrivs:\t1" in status and "Seccomp:\t2" in status
    assert await run(box, "id -u") != "0\n"
    interfaces = [line.split(":")[0].strip() for line in (await run(box, "cat /proc/net/dev")).splitlines()[2:]]
    assert interfaces == ["lo"]
    probe = "for d in $(find / -xdev -type d 2>/dev/null) /dev /usr /etc; do [ -w $d ] && echo $d; done; true"
    writable = (await run(box, probe)).split()
    assert set(writable) <= {"/tmp", "/dev/shm", "/dev/mqueue", box.home}, writable
    assert (await box.exec("touch /usr/x /etc/x /root/x /x /sandbox/x", timeout_s=10)).output.count("touch:") == 5


@pytest.mark.parametrize("box", BACKENDS[1:], indirect=True)
async def test_the_containers_limits_hold(box: ShellSandbox) -> None:
    hungry = await box.exec("python3 -c 'print(len(bytearray(1 << 30)))'", timeout_s=30)
    assert hungry.exit_code == 137 and str(1 << 30) not in hungry.output
    full = await box.exec("for i in 1 2 3; do head -c 20000000 /dev/zero > /tmp/f$i; done", timeout_s=30)
    assert "No space left" in full.output
    crowd = (
        "import os, time\nfor i in range(100):\n  print(i, flush=True)\n  os.fork() or (time.sleep(60), os._exit(0))"
    )
    crowd_result = await box.exec(f"python3 -c '{crowd}'", timeout_s=30)
    assert "BlockingIOError" in crowd_result.output and "\n64\n" not in crowd_result.output
    assert (await box.exec("true", timeout_s=10, session="no room for another shell")).exit_code in (0, 126)
    assert (await box.exec("echo usable", timeout_s=10)).output == "usable\n"


@pytest.mark.parametrize("box", BACKENDS[1:], indirect=True)
async def test_commands_cannot_touch_the_process_that_runs_them(box: ShellSandbox) -> None:
    result = await box.exec("kill -9 1; kill -STOP 1; ls -l /proc/1/fd; cat /proc/1/environ; kill -9 -1", timeout_s=10)
    assert result.output.count("Permission denied") == 2
    assert (await box.exec("echo fine", timeout_s=10)).output == "fine\n"
    assert (await box.exec("ls -A /sandbox-control 2>/dev/null", timeout_s=10)).output == ""


@pytest.mark.parametrize("box", BACKENDS[1:], indirect=True)
async def test_a_container_that_dies_is_replaced_and_its_files_stay(box: ShellSandbox) -> None:
    await box.write_file("kernels/a.cpp", "kept\n")
    command = asyncio.create_task(box.exec("sleep 60", timeout_s=60))
    await asyncio.sleep(0.3)
    os.kill(box.process_ids()[0], signal.SIGKILL)
    result = await command
    assert result.exit_code == 137 and "was started anew" in result.output
    assert await conformance.run(box, "cat kernels/a.cpp") == "kept\n"


CHILD = """
import asyncio, json, sys, time
from pathlib import Path
from sandbox.backends import open_sandbox
from sandbox.config import SandboxConfig
async def main():
    box = await open_sandbox(SandboxConfig.model_validate_json(sys.argv[1]), Path(sys.argv[2]))
    await box.exec("sleep 7777 &", timeout_s=5)
    print(json.dumps([box.process_ids()[0], str(box.workdir)]), flush=True)
    time.sleep(100)
asyncio.run(main())
"""


async def kill_a_driver(config: SandboxConfig, workdir: Path) -> Path:
    """Kills a driver with an open sandbox, whose processes have to end with it; where its workdir was meanwhile."""
    arguments = [sys.executable, "-c", CHILD, config.model_dump_json(), str(lay_out(workdir))]
    child = subprocess.Popen(arguments, stdout=subprocess.PIPE, text=True)
    assert child.stdout
    pid, lent = json.loads(child.stdout.readline())
    child.kill()
    child.communicate()
    for _ in range(100):
        if not Path(f"/proc/{pid}").exists():
            return Path(lent)
        await asyncio.sleep(0.1)
    raise AssertionError("the sandbox outlives its driver")


async def test_a_missing_workdir_is_trouble_of_ours(tmp_path: Path) -> None:
    with pytest.raises(SandboxUnavailableError, match="nowhere"):
        await open_sandbox(SandboxConfig(backend="process"), tmp_path / "nowhere")


async def test_the_process_backend_warns_loudly_and_once(tmp_path: Path, monkeypatch, caplog) -> None:
    monkeypatch.setattr(process_backend, "_warned", False)
    with caplog.at_level(logging.WARNING):
        for name in "ab":
            await (await open_sandbox(SandboxConfig(backend="process"), lay_out(tmp_path / name))).close()
    assert [record.message.split(":")[0] for record in caplog.records] == ["SANDBOX WITHOUT ISOLATION"]


async def test_the_process_backend_of_a_killed_driver_ends_and_leaves_nothing(tmp_path: Path) -> None:
    config = SandboxConfig(backend="process")
    arguments = [sys.executable, "-c", CHILD, config.model_dump_json(), str(lay_out(tmp_path / "task"))]
    scratch = tmp_path / "scratch"
    scratch.mkdir()
    environment = os.environ | {"TMPDIR": str(scratch)}
    child = subprocess.Popen(arguments, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True, env=environment)
    assert child.stdout
    pid, _ = json.loads(child.stdout.readline())
    assert list(scratch.iterdir())
    child.kill()
    child.communicate()
    for _ in range(100):
        if not Path(f"/proc/{pid}").exists() or "Z" in Path(f"/proc/{pid}/stat").read_text():
            break
        await asyncio.sleep(0.1)
    assert list(scratch.iterdir()) == []


async def test_the_process_backend_leaves_no_process_behind(tmp_path: Path) -> None:
    box = await open_sandbox(SandboxConfig(backend="process"), lay_out(tmp_path / "task"))
    pids = await conformance.run(box, "setsid sleep 500 & echo $!; (sleep 501 & echo $!)")
    await box.close()
    for pid in pids.split():
        assert not Path(f"/proc/{pid}").exists()
