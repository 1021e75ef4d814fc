"""The `bubblewrap` backend: an agent's shell in namespaces of its own, for hosts without a Docker Engine.

    sh (enters the control group) ─► prlimit ─► bwrap (namespaces, mounts, seccomp) ─► setpriv ─► shell_server

The root is empty but for this host's programs, mounted read-only; the workdir is mounted where it is, as
/sandbox/work. There is no network, /tmp is a file system of bounded size, and process 1 is shell_server, whose end
the kernel makes the end of everything in there. It ends with our connection, so nothing outlives a killed driver.

As root the sandbox runs as AGENT_UID, and mounting needs no user namespace. An ordinary user keeps its own number, in a
user namespace, which the kernel has to allow. Where no control group can be made (cgroup.py), memory is limited for
each process and processes are counted for the user as a whole: weaker, and said once.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import os
import select
import shutil
import socket
import subprocess
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from sandbox import seccomp
from sandbox.backends import cgroup
from sandbox.backends.bubblewrap_command import command_line
from sandbox.backends.cgroup import Cgroup
from sandbox.backends.ending import wait_or_kill, why_it_ended
from sandbox.backends.files import Workdir, hand_over
from sandbox.backends.rootfs import AGENT_UID, accounts
from sandbox.backends.shell import HOME, WRITABLE, ShellClient, ShellSandbox, shell_environment
from sandbox.config import SandboxConfig
from sandbox.types import SandboxUnavailableError

logger = logging.getLogger(__name__)

_START_TIMEOUT_S = 30.0
_STOP_TIMEOUT_S = 10.0
HOW_TO_ALLOW = (
    "bubblewrap needs namespaces. An ordinary user needs user namespaces: sysctl user.max_user_namespaces above 0, "
    "kernel.unprivileged_userns_clone=1 (Debian), kernel.apparmor_restrict_unprivileged_userns=0 (Ubuntu). Inside of a "
    "container, root needs CAP_SYS_ADMIN. Otherwise set sandbox.backend=docker, or sandbox.backend=process, which runs "
    "the policy's commands as the current user without any isolation: for trusted code only."
)
_warned = False


async def open_bubblewrap_sandbox(config: SandboxConfig, workdir: Path) -> ShellSandbox:
    """Raises SandboxUnavailableError, with what to do, where namespaces are not allowed or the workdir is missing."""
    workdir = workdir.resolve()
    owner = (AGENT_UID, AGENT_UID) if os.getuid() == 0 else None
    try:
        files = Workdir(workdir, owner=owner, protected=hand_over(workdir, owner, WRITABLE))
    except OSError as error:
        raise SandboxUnavailableError(f"the workdir {workdir} cannot be used: {error}") from error
    bubble: Bubble | None = None

    async def start() -> tuple[ShellClient, str]:
        nonlocal bubble
        note = await asyncio.to_thread(bubble.end) if bubble else ""
        bubble = await asyncio.to_thread(Bubble.start, config, workdir)
        return await ShellClient.over(bubble.connection, config.max_output_bytes), note

    async def release() -> None:
        if bubble:
            await asyncio.to_thread(bubble.end)

    try:
        client, _ = await start()
    except BaseException:
        files.close()
        raise
    return ShellSandbox(
        config=config,
        client=client,
        workdir=workdir,
        home=HOME,
        files=files,
        revive=start,
        release=release,
        process_ids=lambda: [bubble.pid] if bubble and bubble.process.poll() is None else [],
    )


def check(config: SandboxConfig) -> None:
    """Starts and ends one sandbox; raises SandboxUnavailableError where that does not work. Removes leftovers."""
    cgroup.reap()
    with tempfile.TemporaryDirectory(prefix="jaxagent-bubblewrap-") as workdir:
        Bubble.start(config, Path(workdir)).end()


@dataclass
class Bubble:
    """A started sandbox."""

    process: subprocess.Popen[bytes]
    pid: int
    """Of the sandbox's process 1, as this host numbers it."""
    connection: socket.socket
    group: Cgroup | None
    memory_mb: int

    @classmethod
    def start(cls, config: SandboxConfig, workdir: Path) -> Bubble:
        """Blocks until shell_server runs. Raises SandboxUnavailableError."""
        program = _program(config)
        group = cgroup.make(memory_bytes=config.memory_mb << 20, pids=config.pids)
        if group is None:
            _warn_once(config)
        ours, theirs = socket.socketpair()
        with contextlib.ExitStack() as stack:
            stack.callback(theirs.close)
            says = stack.enter_context(tempfile.TemporaryFile())
            fds = stack.enter_context(_files_for(theirs))
            try:
                process = subprocess.Popen(
                    command_line(config, program, workdir, group, fds),
                    stdin=subprocess.DEVNULL,
                    stdout=says,
                    stderr=says,
                    cwd="/",
                    env=shell_environment("/tmp"),
                    pass_fds=list(fds.values()),
                    start_new_session=True,
                )
                theirs.close()
                pid = _wait_until_it_runs(process, ours, fds["info"], says)
            except BaseException:
                ours.close()
                if group:
                    group.remove()
                raise
        return cls(process, pid, ours, group, config.memory_mb)

    def end(self) -> str:
        """Ends all of it and returns why it may have ended by itself, in words for the agent."""
        self.connection.close()
        wait_or_kill(self.process, _STOP_TIMEOUT_S)
        out_of_memory = self.group is not None and self.group.has_killed()
        if self.group:
            self.group.remove()
        return why_it_ended(out_of_memory=out_of_memory, memory_mb=self.memory_mb)


def _program(config: SandboxConfig) -> str:
    path = shutil.which("bwrap")
    if path is None:
        raise SandboxUnavailableError(
            "bwrap is not on PATH; install it (Debian: apt-get install bubblewrap), or set sandbox.backend"
        )
    if config.image != "host-rootfs":
        raise SandboxUnavailableError(
            f"sandbox.image={config.image!r} needs sandbox.backend=docker; bubblewrap has host-rootfs only"
        )
    return path


@contextlib.contextmanager
def _files_for(server_end: socket.socket) -> Iterator[dict[str, int]]:
    """Descriptors that bwrap takes by number: what it reads files of /etc and the filter from, and writes facts to."""
    read_end, write_end = os.pipe()
    fds = {"server": server_end.fileno(), "said": write_end}
    try:
        code = seccomp.program("shell")
        texts = {name: text.encode() for name, text in accounts().items()} | ({"seccomp": code} if code else {})
        for name, content in texts.items():
            fds[name] = os.memfd_create(name.replace("/", "-"))
            os.write(fds[name], content)
            os.lseek(fds[name], 0, os.SEEK_SET)
        yield fds | {"info": read_end}
    finally:
        for name, fd in fds.items():
            if name not in ("server",):
                os.close(fd)
        os.close(read_end)


def _wait_until_it_runs(process: subprocess.Popen[bytes], connection: socket.socket, info: int, says) -> int:
    """Number of the sandbox's process 1, once it has said its first word. Raises SandboxUnavailableError."""
    readable, _, _ = select.select([connection], [], [], _START_TIMEOUT_S)
    alive = bool(readable) and bool(connection.recv(1, socket.MSG_PEEK))
    if alive:
        return int(json.loads(os.read(info, 4096))["child-pid"])
    process.kill()
    process.wait()
    says.seek(0)
    said = says.read(2000).decode(errors="replace").strip() or f"it ended with status {process.returncode}"
    why = said if readable else f"nothing within {_START_TIMEOUT_S:g} s; {said}"
    raise SandboxUnavailableError(f"no sandbox could be started: {why}. {HOW_TO_ALLOW}")


def _warn_once(config: SandboxConfig) -> None:
    global _warned
    if not _warned:
        _warned = True
        logger.warning(
            "no control group can be made below %s: sandbox.memory_mb=%d limits each process of a sandbox alone, and "
            "sandbox.pids=%d all processes of its user together",
            cgroup.ROOT,
            config.memory_mb,
            config.pids,
        )
