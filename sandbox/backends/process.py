"""The `process` backend: bash as the current user in the workdir, with nothing between it and the machine."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import resource
import socket
import subprocess
import sys
import tempfile
from pathlib import Path

from sandbox.backends import shell_server
from sandbox.backends.ending import wait_or_kill
from sandbox.backends.files import Workdir, hand_over, remove_tree
from sandbox.backends.shell import WRITABLE, ShellClient, ShellSandbox, shell_environment
from sandbox.config import SandboxConfig
from sandbox.types import SandboxUnavailableError

logger = logging.getLogger(__name__)
_STOP_TIMEOUT_S = 10.0
_warned = False


async def open_process_sandbox(config: SandboxConfig, workdir: Path) -> ShellSandbox:
    """Raises SandboxUnavailableError where no process can be started or the workdir is missing."""
    _warn_once()
    workdir = workdir.resolve()
    try:
        scratch = Path(tempfile.mkdtemp(prefix="jaxagent-scratch-"))
    except OSError as error:
        raise SandboxUnavailableError(f"no place for a sandbox's temporary files: {error}; set TMPDIR") from error
    try:
        files = Workdir(workdir, protected=hand_over(workdir, None, WRITABLE))
    except OSError as error:
        remove_tree(scratch)
        raise SandboxUnavailableError(f"the workdir {workdir} cannot be used: {error}") from error
    server: subprocess.Popen[bytes] | None = None

    async def start() -> tuple[ShellClient, str]:
        nonlocal server
        await stop()
        server, connection = await asyncio.to_thread(_start_server, config, workdir, scratch)
        return await ShellClient.over(connection, config.max_output_bytes), ""

    async def stop() -> None:
        if server is not None:
            await asyncio.to_thread(wait_or_kill, server, _STOP_TIMEOUT_S)

    async def release() -> None:
        await stop()
        await asyncio.to_thread(remove_tree, scratch)

    client, _ = await start()
    return ShellSandbox(
        config=config,
        client=client,
        workdir=workdir,
        home=str(workdir),
        files=files,
        revive=start,
        release=release,
        process_ids=lambda: [server.pid] if server and server.poll() is None else [],
    )


def _start_server(config: SandboxConfig, workdir: Path, scratch: Path) -> tuple[subprocess.Popen[bytes], socket.socket]:
    ours, theirs = socket.socketpair()
    limit = config.disk_mb << 20
    command = [
        *shell_server.start_command(sys.executable, shell_server.SOURCE),
        f"fd:{theirs.fileno()}",
        str(workdir),
        str(scratch),
    ]
    try:
        scratch.mkdir(mode=0o700, exist_ok=True)  # an earlier server has removed it
        with theirs:
            server = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                cwd=workdir,
                env=shell_environment(scratch),
                pass_fds=[theirs.fileno()],
                start_new_session=True,
            )
    except OSError as error:
        ours.close()
        raise SandboxUnavailableError(f"no process could be started for a sandbox: {error}") from error
    with contextlib.suppress(ProcessLookupError):  # ended already: the first request says so
        resource.prlimit(server.pid, resource.RLIMIT_FSIZE, (limit, limit))
        resource.prlimit(server.pid, resource.RLIMIT_CORE, (0, 0))
    return server, ours


def _warn_once() -> None:
    global _warned
    if not _warned:
        _warned = True
        logger.warning(
            "SANDBOX WITHOUT ISOLATION: sandbox.backend is `process`. Every command of the policy runs as user %s on "
            "this machine, with its files and its network. For trusted code only; sandbox.backend=docker isolates.",
            os.environ.get("USER") or os.getuid(),
        )
