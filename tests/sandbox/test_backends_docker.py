"""What the docker backend alone promises; the rest is in test_backends.py."""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
from pathlib import Path

import conformance
import pytest
from test_backends import (
    CHILD,
    DOCKER,
    containers_go_when_the_tests_are_done,  # noqa: F401
    kill_a_driver,
    lay_out,
)

from sandbox.backends import close_pools, open_sandbox
from sandbox.backends.docker_engine import refuse_mapped_users
from sandbox.quiet import QuietLease
from sandbox.types import SandboxUnavailableError


@pytest.mark.docker
async def test_the_workdir_is_at_its_place_before_while_and_after(tmp_path: Path) -> None:
    workdir = lay_out(tmp_path / "task")
    box = await open_sandbox(DOCKER, workdir)
    await conformance.run(box, "echo 1 > kernels/k.cpp; chmod 000 kernels/k.cpp; ln -s /etc evil")
    assert sorted(os.listdir(workdir)) == ["evil", "kernels", "model.py", "utils"]
    await box.close()
    assert not workdir.is_symlink() and (workdir / "kernels/k.cpp").read_text() == "1\n"
    assert not box.workdir.parent.parent.exists()


@pytest.mark.docker
async def test_a_workdir_on_another_file_system_works_too(tmp_path: Path) -> None:
    shm = Path("/dev/shm") / f"sandbox-test-{os.getpid()}"
    try:
        box = await open_sandbox(DOCKER, lay_out(shm))
        await conformance.run(box, "echo new > kernels/k.cpp; mkfifo kernels/pipe")
        await box.close()
        assert (shm / "kernels/k.cpp").read_text() == "new\n"
    finally:
        subprocess.run(["rm", "-rf", str(shm)], check=True)


@pytest.mark.docker
async def test_no_container_serves_twice(tmp_path: Path) -> None:
    seen = []
    for name in "abc":
        box = await open_sandbox(DOCKER, lay_out(tmp_path / name))
        assert await conformance.run(box, "ls /tmp/trace 2>/dev/null; touch /tmp/trace") == ""
        seen.append(box.process_ids()[0])
        await box.close()
    assert len(set(seen)) == 3


@pytest.mark.docker
async def test_containers_of_a_killed_driver_end_and_are_reaped(tmp_path: Path) -> None:
    slot_work = await kill_a_driver(DOCKER, tmp_path / "task")
    assert slot_work.exists()
    close_pools()
    box = await open_sandbox(DOCKER, lay_out(tmp_path / "next"))  # a new pool reaps first
    await box.close()
    assert not slot_work.exists()


ORDINARY_USER = """
import asyncio, json, os, subprocess, sys
from pathlib import Path
from sandbox.backends import close_pools, open_sandbox
from sandbox.config import SandboxConfig
async def main():
    box = await open_sandbox(SandboxConfig.model_validate_json(sys.argv[1]), Path(sys.argv[2]))
    await box.write_file("kernels/a.cpp", "x")
    result = await box.exec("id -u; echo y >> kernels/a.cpp && cat kernels/a.cpp; echo z > model.py", timeout_s=20)
    await box.close()
    close_pools()
    print(json.dumps([result.output, Path(sys.argv[2], "kernels/a.cpp").read_text()]))
asyncio.run(main())  # as root first: afterwards a Python below /root can import nothing more
subprocess.run(["chown", "-R", "12345:12345", sys.argv[2]], check=True)
os.setgroups([]); os.setgid(os.stat("/var/run/docker.sock").st_gid); os.setuid(12345)
asyncio.run(main())
"""


@pytest.mark.docker
@pytest.mark.skipif(os.getuid() != 0, reason="the other tests are run as an ordinary user already")
def test_an_ordinary_user_of_the_engine_is_the_same_user_inside(tmp_path: Path) -> None:
    tmp_path.chmod(0o755)
    for parent in tmp_path.parents[:2]:
        parent.chmod(parent.stat().st_mode | 0o055)
    home = tmp_path / "home"
    workdir = lay_out(home / "task")
    os.chown(home, 12345, 12345)
    arguments = [sys.executable, "-c", ORDINARY_USER, DOCKER.model_dump_json(), str(workdir)]
    done = subprocess.run(arguments, capture_output=True, text=True, env=os.environ | {"TMPDIR": str(home)})
    assert done.returncode == 0, done.stderr
    output, text = json.loads(done.stdout.splitlines()[-1])
    assert output == "12345\nxy\nbash: line 6: model.py: Permission denied\n" and text == "xy\n"


@pytest.mark.docker
@pytest.mark.skipif(not Path("/usr/bin/python3").exists(), reason="the image is made of the system's Python")
async def test_an_image_of_ones_own_serves_as_well(tmp_path: Path) -> None:
    """One with its own /usr: a copy of what bash and the system's Python need here."""
    import docker

    files = ["/usr/bin/bash", "/usr/bin/cat", "/usr/bin/python3", os.path.realpath("/usr/bin/python3")]
    modules = [str(path) for path in Path(f"/usr/lib/{Path(files[3]).name}/lib-dynload").glob("_ctypes.*")]
    linked = subprocess.run(["ldd", *files[:2], files[3], *modules], capture_output=True, text=True, check=True).stdout
    libraries = {word for word in linked.split() if word.startswith("/") and not word.endswith(":")}
    standard = f"/usr/lib/{Path(files[3]).name}"
    links = [f"/{name}" for name in ("bin", "lib", "lib64") if Path("/", name).is_symlink()]
    resolved = {str(Path(path).parent.resolve() / Path(path).name) for path in libraries}
    targets = {os.path.realpath(path) for path in resolved}
    tmp_path.joinpath("tmp").mkdir()
    tmp_path.joinpath("tmp").chmod(0o1777)
    command = [
        "tar",
        "-c",
        "--exclude=__pycache__",
        "--exclude=test",
        "--exclude=dist-packages",
        "-C",
        "/",
        *files,
        *links,
    ]
    command += [*sorted(resolved | targets), standard, "-C", str(tmp_path), "tmp"]
    packed = subprocess.run(command, capture_output=True, check=True).stdout
    client = docker.from_env()
    client.api.import_image_from_data(packed, repository="jaxagent-test/own", tag="1")
    try:
        config = DOCKER.model_copy(update={"image": "jaxagent-test/own:1", "warm_containers": 0})
        box = await open_sandbox(config, lay_out(tmp_path / "task"))
        assert (
            await conformance.run(box, "python3 -c 'import sys; print(sys.prefix)'; cat model.py") == "/usr\nsize = 4\n"
        )
        assert (await box.exec("g++", timeout_s=5)).exit_code == 127
        await box.close()
    finally:
        client.images.remove("jaxagent-test/own:1")
        client.close()


@pytest.mark.docker
async def test_an_unknown_image_says_how_to_get_one(tmp_path: Path) -> None:
    with pytest.raises(SandboxUnavailableError, match=r"no image 'nobody/nothing:1'.*docker build.*host-rootfs"):
        await open_sandbox(DOCKER.model_copy(update={"image": "nobody/nothing:1"}), lay_out(tmp_path / "task"))


async def test_an_engine_that_is_down_says_what_to_do(tmp_path: Path, monkeypatch) -> None:
    monkeypatch.setenv("DOCKER_HOST", f"unix://{tmp_path}/no.sock")
    with pytest.raises(SandboxUnavailableError) as caught:
        await open_sandbox(DOCKER.model_copy(update={"memory_mb": 513}), lay_out(tmp_path / "task"))
    for hint in ("no.sock", "scripts/start_docker.sh", "sandbox.backend=process", "trusted code only"):
        assert hint in str(caught.value)
    assert "\n\n" not in str(caught.value) and (tmp_path / "task" / "model.py").exists()


@pytest.mark.parametrize("option", ["name=rootless", "name=userns"])
def test_an_engine_that_maps_users_is_refused_with_the_reason(option: str) -> None:
    refuse_mapped_users({"SecurityOptions": ["name=seccomp,profile=default"]})
    refuse_mapped_users({"SecurityOptions": None})
    with pytest.raises(SandboxUnavailableError, match=option.removeprefix("name=")):
        refuse_mapped_users({"SecurityOptions": ["name=seccomp,profile=default", option]})


@pytest.mark.docker
async def test_a_full_disk_says_where_and_what_to_do(tmp_path: Path) -> None:
    """On a file system of 100 inodes, which are used up; made by the kernel where this user may mount, else skipped."""
    small = tmp_path / "small"
    small.mkdir()
    if subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "nr_inodes=100", "none", str(small)], capture_output=True
    ).returncode:
        pytest.skip("mounting is not allowed here")
    try:
        for index in range(200):
            try:
                (small / str(index)).touch()
            except OSError:
                break
        for index in range(2):  # tempfile tries TMPDIR out; then there is the folder of all sandboxes
            (small / str(index)).unlink()
        child = CHILD.replace("time.sleep(100)", "")
        arguments = [sys.executable, "-c", child, DOCKER.model_dump_json(), str(lay_out(tmp_path / "task"))]
        done = subprocess.run(arguments, capture_output=True, text=True, env=os.environ | {"TMPDIR": str(small)})
        assert "SandboxUnavailableError: no sandbox can be kept at" in done.stderr and "set TMPDIR" in done.stderr
    finally:
        subprocess.run(["umount", str(small)], check=True)


@pytest.mark.docker
async def test_a_quiet_lease_stops_everything_in_a_container(tmp_path: Path) -> None:
    box = await open_sandbox(DOCKER, lay_out(tmp_path / "task"))
    await conformance.run(box, "(while true; do echo x >> kernels/ticks; sleep 0.01; done) & setsid sleep 1000 &")
    lease = QuietLease(tmp_path / "registry")
    for pid in box.process_ids():
        lease.register(pid)

    def ticks() -> int:
        return (box.workdir / "kernels/ticks").stat().st_size

    await asyncio.sleep(0.3)
    with lease.hold() as frozen:
        before = ticks()
        await asyncio.sleep(0.5)
        assert ticks() == before and frozen >= 4
    await asyncio.sleep(0.3)
    assert ticks() > before
    lease.close()
    await box.close()
