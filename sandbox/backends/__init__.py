"""Where an agent's shell runs: `docker` and `bubblewrap` isolate, `process` does not, with `files` there is none."""

from __future__ import annotations

import asyncio
from pathlib import Path

from sandbox.backends.files_only import FilesSandbox
from sandbox.backends.shell import ShellSandbox
from sandbox.config import SandboxConfig

__all__ = ["FilesSandbox", "ShellSandbox", "close_pools", "open_sandbox", "warm_up"]


async def open_sandbox(config: SandboxConfig, workdir: Path) -> ShellSandbox | FilesSandbox:
    """A fresh shell on the files of `workdir`, which belongs to the sandbox until close().

    Top-level entries other than model_new.py and kernels/ that are there now become read-only to the agent. With
    `docker` the directory is moved while the sandbox is open and a link stands in its place: `sandbox.workdir` is
    where the files are, `sandbox.home` what the agent's shell calls it. close() moves it back.

    Raises SandboxUnavailableError, with what to do about it, where the backend does not work.
    """
    if config.backend == "files":
        return FilesSandbox(workdir)
    if config.backend == "process":
        from sandbox.backends.process import open_process_sandbox

        return await open_process_sandbox(config, workdir)
    if config.backend == "bubblewrap":
        from sandbox.backends.bubblewrap import open_bubblewrap_sandbox

        return await open_bubblewrap_sandbox(config, workdir)
    from sandbox.backends.docker import open_docker_sandbox

    return await open_docker_sandbox(config, workdir)


async def warm_up(config: SandboxConfig) -> None:
    """Starts what open_sandbox() will need, and fails early where the backend does not work."""
    if config.backend == "docker":
        from sandbox.backends.docker import pool_of

        await asyncio.to_thread(pool_of(config).fill)
    elif config.backend == "bubblewrap":
        from sandbox.backends.bubblewrap import check

        await asyncio.to_thread(check, config)


def close_pools() -> None:
    """Removes this process's warm containers; also done at exit. Open sandboxes are not touched."""
    from sandbox.backends.docker import close_pools as close_docker_pools

    close_docker_pools()
