"""What the bubblewrap backend alone promises; the rest is in test_backends.py."""

from __future__ import annotations

import json
import logging
import os
import shutil
import subprocess
import sys
from pathlib import Path

import conformance
import pytest
from test_backends import BUBBLEWRAP, kill_a_driver, lay_out

from sandbox.backends import bubblewrap, cgroup, open_sandbox, warm_up
from sandbox.types import SandboxUnavailableError

pytestmark = pytest.mark.skipif(shutil.which("bwrap") is None, reason="bubblewrap is not installed")
as_root = pytest.mark.skipif(os.getuid() != 0, reason="needs root")


def groups() -> set[Path]:
    return {path for parent in ("", "memory", "pids") for path in (cgroup.ROOT / parent).glob("jaxagent.*")}


async def test_nothing_is_left_when_it_is_closed(tmp_path: Path) -> None:
    before = groups()
    box = await open_sandbox(BUBBLEWRAP, lay_out(tmp_path / "task"))
    await conformance.run(box, "setsid sleep 500 & echo started")
    pid = box.process_ids()[0]
    await box.close()
    assert not Path(f"/proc/{pid}").exists() and groups() == before


async def test_everything_of_a_killed_driver_ends_and_its_groups_are_reaped(tmp_path: Path) -> None:
    before = groups()
    await kill_a_driver(BUBBLEWRAP, tmp_path / "task")
    await warm_up(BUBBLEWRAP)
    assert groups() <= before


async def test_the_hosts_files_and_processes_are_out_of_sight(tmp_path: Path) -> None:
    secret = tmp_path / "secret"
    secret.write_text("hunter2")
    secret.chmod(0o644)
    box = await open_sandbox(BUBBLEWRAP, lay_out(tmp_path / "task"))
    try:
        assert (await box.exec(f"cat {secret} /etc/shadow /proc/1/root{secret}", timeout_s=10)).exit_code != 0
        assert (await conformance.run(box, "ls -d /proc/[0-9]* | wc -l")).strip() in ("3", "4", "5")
        for command in ("unshare -Ur true", "mount -t tmpfs none /tmp", "chroot / true", "mknod /tmp/sda b 8 0"):
            assert (await box.exec(command, timeout_s=10)).exit_code != 0, command
        setuid = "cp /bin/bash /tmp/b; chmod u+s /tmp/b; /tmp/b -p -c 'id -u'"
        assert (await conformance.run(box, setuid)).strip() == (await conformance.run(box, "id -u")).strip()
        probe = "python3 -c \"import socket; socket.create_connection(('1.1.1.1', 53), 2)\""
        assert "Network is unreachable" in (await box.exec(probe, timeout_s=10)).output
    finally:
        await box.close()


async def test_without_control_groups_each_process_is_limited_and_that_is_said_once(
    tmp_path: Path, monkeypatch, caplog
) -> None:
    monkeypatch.setattr(cgroup, "make", lambda **limits: None)
    monkeypatch.setattr(bubblewrap, "_warned", False)
    with caplog.at_level(logging.WARNING):
        for name in "ab":
            box = await open_sandbox(BUBBLEWRAP.model_copy(update={"pids": 500}), lay_out(tmp_path / name))
            hungry = await box.exec("python3 -c 'print(len(bytearray(1 << 30)))'", timeout_s=30)
            assert "MemoryError" in hungry.output
            assert (await conformance.run(box, "ulimit -u")).strip() == "500"
            await box.close()
    assert [record.message.split(":")[0] for record in caplog.records] == [
        f"no control group can be made below {cgroup.ROOT}"
    ]


def test_a_group_is_not_made_where_there_is_none(tmp_path: Path) -> None:
    assert cgroup.make(memory_bytes=1 << 20, pids=4, root=tmp_path) is None


async def test_a_missing_program_and_another_image_say_what_to_do(tmp_path: Path, monkeypatch) -> None:
    workdir = lay_out(tmp_path / "task")
    with pytest.raises(SandboxUnavailableError, match="needs sandbox.backend=docker"):
        await open_sandbox(BUBBLEWRAP.model_copy(update={"image": "own:1"}), workdir)
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(SandboxUnavailableError, match="apt-get install bubblewrap"):
        await open_sandbox(BUBBLEWRAP, workdir)


ORDINARY_USER = """
import asyncio, json, os, sys
from pathlib import Path
from sandbox import seccomp
from sandbox.backends import bubblewrap, open_sandbox
from sandbox.config import SandboxConfig
from sandbox.types import SandboxUnavailableError
async def main():
    try:
        box = await open_sandbox(SandboxConfig.model_validate_json(sys.argv[1]), Path(sys.argv[2]))
    except SandboxUnavailableError as error:
        return print(json.dumps(["unavailable", str(error)]))
    command = "id -u; echo y >> kernels/a.cpp && cat kernels/a.cpp; echo z > model.py; touch /x /etc/x"
    await box.write_file("kernels/a.cpp", "x")
    result = await box.exec(command, timeout_s=20)
    rights = await box.exec("grep -E 'Cap(Prm|Eff|Bnd)' /proc/self/status", timeout_s=20)
    await box.close()
    print(json.dumps([result.output, rights.output]))
if sys.argv[3] == "False":
    seccomp.restrict("shell")  # forbids namespaces, as machines and containers do that do not want them
os.setgroups([]); os.setgid(12345); os.setuid(12345)
asyncio.run(main())
"""


FOR_ALL_TO_READ = """
set -e; kept=$1; hidden=$2; shift 2; paths=
while [ "$1" != -- ]; do mkdir -p "$kept$1"; mount --bind "$1" "$kept$1"; paths="$paths $1"; shift; done; shift
mount -t tmpfs -o mode=755 none "$hidden"
for path in $paths; do mkdir -p "$path"; mount --bind "$kept$path" "$path"; done
exec "$@"
"""


def readable_python(scratch: Path) -> list[str]:
    """Prefix of a command that sees this Python, its packages and ours where any user may read them.

    It runs in a mount namespace of its own, in which a folder that only root may enter is replaced.
    """
    needed = [Path(sys.base_prefix), Path(sys.prefix), Path(__file__).resolve().parents[2]]
    hidden = {next((top for top in reversed(path.parents) if not top.stat().st_mode & 0o001), None) for path in needed}
    hidden.discard(None)
    if not hidden:
        return []
    (top,) = hidden
    inside = [str(path) for path in needed if path.is_relative_to(top)]
    return ["unshare", "--mount", "sh", "-c", FOR_ALL_TO_READ, "sh", str(scratch / "kept"), str(top), *inside, "--"]


@as_root
@pytest.mark.parametrize("allowed", [True, False])
def test_an_ordinary_user_is_the_same_user_inside_or_hears_what_is_not_allowed(tmp_path: Path, allowed: bool) -> None:
    for parent in (tmp_path, *tmp_path.parents[:2]):
        parent.chmod(parent.stat().st_mode | 0o055)
    workdir = lay_out(tmp_path / "home" / "task")
    for path in (workdir.parent, workdir, *workdir.rglob("*")):
        os.chown(path, 12345, 12345)
    command = [sys.executable, "-c", ORDINARY_USER, BUBBLEWRAP.model_dump_json(), str(workdir), str(allowed)]
    command = readable_python(tmp_path) + command
    done = subprocess.run(command, capture_output=True, text=True, env=os.environ | {"TMPDIR": str(workdir.parent)})
    assert done.returncode == 0, done.stderr
    first, second = json.loads(done.stdout.splitlines()[-1])
    if not allowed:
        assert first == "unavailable" and "namespace" in second.split(". ")[0]
        assert "user.max_user_namespaces" in second and "sandbox.backend=docker" in second
        return
    assert first.startswith("12345\nxy\n") and first.count("Read-only file system") == 2, (first, second)
    assert second.count("0000000000000000") == 3
