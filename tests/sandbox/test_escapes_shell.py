"""Escapes tried in an agent's shell, in every backend that isolates; each ends as a result and the host is as it was.

Disk, links out of the workdir, and commands that do not end are in conformance.py, limits of memory in
test_backends.py.
"""

from __future__ import annotations

import asyncio
import os
import socket
import time
from pathlib import Path

import conformance
import pytest
from test_backends import BACKENDS, box, containers_go_when_the_tests_are_done  # noqa: F401

from sandbox.backends import ShellSandbox
from sandbox.skill import collect_candidate

ISOLATING = pytest.mark.parametrize("box", BACKENDS[1:], indirect=True)


def python(code: str) -> str:
    return f"python3 - <<'END'\n{code}\nEND"


def descendants(roots: list[int]) -> int:
    """Processes of the host whose ancestor is one of the roots, these included."""
    parents = {}
    for entry in Path("/proc").glob("[0-9]*/stat"):
        try:
            parents[int(entry.parent.name)] = int(entry.read_text().rpartition(")")[2].split()[1])
        except (OSError, IndexError):
            continue  # it has ended
    found, grown = set(roots), True
    while grown:
        more = {pid for pid, parent in parents.items() if parent in found} - found
        found, grown = found | more, bool(more)
    return len(found)


@ISOLATING
async def test_a_fork_bomb_stays_within_its_limit_and_ends_with_the_sandbox(box: ShellSandbox) -> None:  # noqa: F811
    roots = box.process_ids()
    await box.exec("bomb() { bomb | bomb & }; bomb", timeout_s=1)
    await asyncio.sleep(0.5)
    assert descendants(roots) <= 64 + 2  # and what starts the sandbox
    assert (await box.exec("true", timeout_s=5)).exit_code in (0, 126, 137, None)
    await box.close()
    assert not any(Path(f"/proc/{pid}").exists() for pid in roots)


@ISOLATING
async def test_processes_that_fill_the_memory_together_are_killed(box: ShellSandbox) -> None:  # noqa: F811
    hungry = "python3 -c 'import time; x = b\"x\" * (200 << 20); time.sleep(4); print(len(x))'"
    result = await box.exec(f"for i in 1 2 3 4; do {hungry} & done; wait; echo over", timeout_s=20)
    assert result.output.count(str(200 << 20)) < 4
    assert (await box.exec("echo usable", timeout_s=10)).output == "usable\n"


@ISOLATING
async def test_a_million_files_are_stopped_and_judged_at_once(box: ShellSandbox) -> None:  # noqa: F811
    result = await box.exec(python("for i in range(10**6): open(f'kernels/{i}.cpp', 'w').close()"), timeout_s=30)
    assert result.exit_code == 137 and "20000 files" in result.output
    began = time.monotonic()
    candidate = collect_candidate(box.workdir)
    assert time.monotonic() - began < 1 and len(candidate.files) <= 32
    assert sum(map(len, candidate.omitted)) + sum(map(len, candidate.omitted.values())) < 10_000
    assert (await box.exec("rm -rf kernels; echo usable", timeout_s=30)).output == "usable\n"


@ISOLATING
async def test_a_million_files_in_tmp_are_no_more_than_memory(box: ShellSandbox) -> None:  # noqa: F811
    result = await box.exec(python("for i in range(10**6): open(f'/tmp/{i}', 'w').close()"), timeout_s=2)
    assert result.exit_code != 0
    assert (await box.exec("echo usable", timeout_s=10)).output == "usable\n"


@ISOLATING
async def test_nothing_of_the_host_shows_in_proc_and_dev(box: ShellSandbox) -> None:  # noqa: F811
    devices = set((await conformance.run(box, "ls /dev")).split())
    harmless = "null zero full random urandom tty ptmx pts shm mqueue console fd stdin stdout stderr core"
    assert devices <= set(harmless.split()), devices
    for path in ("/proc/kcore", "/proc/1/mem", "/proc/1/environ", "/dev/mem", "/dev/sda", "/dev/kmsg"):
        assert (await box.exec(f"head -c 1 {path} | grep -q .", timeout_s=10)).exit_code != 0, path
    for path in ("/proc/sysrq-trigger", "/proc/sys/kernel/core_pattern", "/proc/sys/vm/drop_caches", "/sys/x"):
        assert (await box.exec(f"echo 1 > {path}", timeout_s=10)).exit_code != 0, path
    for device in ("b 8 0", "c 1 1"):
        assert (await box.exec(f"mknod /tmp/device {device}", timeout_s=10)).exit_code != 0


@ISOLATING
async def test_processes_of_the_host_cannot_be_signalled_or_traced(box: ShellSandbox) -> None:  # noqa: F811
    """Nor the process that runs commands; the number of this test means nobody inside, or somebody else."""
    assert (await box.exec(f"cat /proc/{os.getpid()}/cmdline | grep -q pytest", timeout_s=10)).exit_code != 0
    await box.exec(f"kill -9 {os.getpid()} {os.getppid()} -1", timeout_s=10)
    attach, seize = 16, 0x4206
    trace = python(
        f"import ctypes\nfor request in ({attach}, {seize}): print(ctypes.CDLL(None).ptrace(request, 1, 0, 0))"
    )
    assert (await conformance.run(box, trace)).split() == ["-1", "-1"]
    assert (await box.exec("echo usable", timeout_s=10)).output == "usable\n"


@ISOLATING
async def test_no_network_reaches_the_host_or_further(box: ShellSandbox, tmp_path: Path) -> None:  # noqa: F811
    with socket.create_server(("127.0.0.1", 0)) as server, socket.socket(socket.AF_UNIX) as abstract:
        abstract.bind(f"\0escape-{os.getpid()}")
        abstract.listen()
        code = (
            "import socket\n"
            f"for kind, address in ((socket.AF_INET, ('127.0.0.1', {server.getsockname()[1]})), "
            f"(socket.AF_INET, ('1.1.1.1', 53)), (socket.AF_UNIX, '\\0escape-{os.getpid()}')):\n"
            "    with socket.socket(kind) as s:\n"
            "        s.settimeout(2); print(s.connect_ex(address) == 0)"
        )
        assert (await conformance.run(box, python(code))).split() == ["False"] * 3


@ISOLATING
async def test_nobody_becomes_another_user(box: ShellSandbox) -> None:  # noqa: F811
    mine = await conformance.run(box, "id -u")
    assert await conformance.run(box, "cp /bin/bash /tmp/b; chmod u+s /tmp/b; /tmp/b -p -c 'id -u'") == mine
    become = "import os\ntry: os.setuid(0)\nexcept PermissionError: print('refused')"
    assert mine == "0\n" or await conformance.run(box, python(become)) == "refused\n"
    assert (await box.exec("echo | su -c 'id -u' root | grep -qx 0", timeout_s=10)).exit_code != 0


@ISOLATING
async def test_output_without_end_is_cut_and_ends_at_its_time(box: ShellSandbox) -> None:  # noqa: F811
    result = await box.exec("yes $(head -c 1000 /dev/zero | tr '\\0' x)", timeout_s=1)
    assert result.exit_code is None and result.truncated and len(result.output) < 30_200


@ISOLATING
async def test_orphans_do_not_pile_up_as_zombies(box: ShellSandbox) -> None:  # noqa: F811
    code = (
        "import os, time\n"
        "for i in range(60):\n"
        "    if os.fork() == 0:\n"
        "        if os.fork() == 0: time.sleep(0.01)\n"
        "        os._exit(0)\n"
        "    os.wait()"
    )
    assert (await box.exec(python(code), timeout_s=20)).exit_code == 0
    await asyncio.sleep(0.5)
    assert await conformance.run(box, "cat /proc/[0-9]*/stat 2>/dev/null | grep -c ') Z' || true") == "0\n"


@ISOLATING
async def test_a_shell_that_stops_itself_is_ended_at_its_time(box: ShellSandbox) -> None:  # noqa: F811
    began = time.monotonic()
    result = await box.exec("kill -STOP $$; sleep infinity", timeout_s=1)
    assert result.exit_code is None and time.monotonic() - began < 5
    assert (await box.exec("echo usable", timeout_s=10)).output == "usable\n"
