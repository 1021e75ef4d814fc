"""The host's side of a sandbox: the client of shell_server and the Sandbox that both backends are made of."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import json
import os
import socket
import sys
import time
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path

from sandbox.backends.files import MAX_DEPTH, MAX_ENTRIES, Workdir, usage_bytes
from sandbox.config import SandboxConfig
from sandbox.types import ExecResult, SandboxUnavailableError

HOME = "/sandbox/work"
"""The workdir, where a sandbox has a root of its own."""
WRITABLE = frozenset({"model_new.py", "kernels"})
"""Top-level entries of a workdir that are the agent's; others that are there at the start are read-only to it."""
MAX_COMMAND_BYTES = 1 << 20
_SILENCE_S = 30  # without a frame of a busy server it counts as dead; it sends one a second
_USAGE_SLACK_BYTES = 1 << 20
_DELETE_S = 10.0  # for deleting more files than can be counted


def shell_environment(scratch: Path | str) -> dict[str, str]:
    """What a shell starts with: this Python first in PATH, and none of our own variables (keys, tokens)."""
    return {
        "PATH": os.pathsep.join([str(Path(sys.prefix) / "bin"), "/usr/local/bin", "/usr/bin", "/bin"]),
        "HOME": str(scratch),
        "TMPDIR": str(scratch),
        "LANG": "C.UTF-8",
        "TERM": "dumb",
        "PAGER": "cat",
        "PYTHONDONTWRITEBYTECODE": "1",
    }


class ConnectionLostError(Exception):
    """The server's process is gone: the agent used up the sandbox's memory, or the engine has failed."""


class ShellClient:
    """Requests and replies over one socket; many sessions at a time, one command a session at a time."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, max_output_bytes: int):
        self._reader, self._writer = reader, writer
        self._max_output_bytes = max_output_bytes
        self._max_frame_bytes = 16 * max_output_bytes + (1 << 16)  # JSON escapes a byte with at most 6 to 12 characters
        self._replies: dict[int, asyncio.Future[dict]] = {}
        self._next_id = 0
        self._last_frame = time.monotonic()
        self._receiver = asyncio.create_task(self._receive())

    @classmethod
    async def over(cls, connection: socket.socket, max_output_bytes: int) -> ShellClient:
        connection.setblocking(False)
        reader, writer = await asyncio.open_connection(sock=connection, limit=1 << 20)
        return cls(reader, writer, max_output_bytes)

    async def exec(self, command: str, timeout_s: float, session: str) -> ExecResult:
        """Raises ConnectionLostError when the far end dies or falls silent. Cancelling kills the command."""
        self._next_id += 1
        request_id = self._next_id
        request = {"session": session, "command": command, "timeout_s": timeout_s}
        reply = self._replies[request_id] = asyncio.get_running_loop().create_future()
        try:
            self.send(op="exec", id=request_id, max_output_bytes=self._max_output_bytes, **request)
            silent_s = 0
            while not reply.done():
                seen = self._last_frame
                await asyncio.wait([reply], timeout=1.0)
                # seconds of ours, not of the clock: a process that was stopped meanwhile has not waited
                silent_s = silent_s + 1 if self._last_frame == seen else 0
                if silent_s > _SILENCE_S:
                    raise ConnectionLostError(f"no sign of life for {_SILENCE_S} s")
            frame = reply.result()
        except asyncio.CancelledError:
            with contextlib.suppress(ConnectionLostError):
                self.send(op="cancel", session=session)
            raise
        finally:
            del self._replies[request_id]
        return ExecResult(
            exit_code=frame["exit_code"], output=frame["output"], truncated=frame["truncated"], seconds=frame["seconds"]
        )

    def send(self, **frame: object) -> None:
        if self._writer.is_closing():
            raise ConnectionLostError("the connection is closed")
        body = json.dumps(frame).encode()
        self._writer.write(len(body).to_bytes(4, "big") + body)

    async def close(self) -> None:
        self._receiver.cancel()
        self._writer.close()
        with contextlib.suppress(asyncio.CancelledError, ConnectionError, BrokenPipeError):
            await self._receiver
        with contextlib.suppress(ConnectionError, BrokenPipeError):
            await self._writer.wait_closed()

    async def _receive(self) -> None:
        reason = "the connection was closed"
        try:
            while True:
                length = int.from_bytes(await self._reader.readexactly(4), "big")
                if length > self._max_frame_bytes:
                    reason = f"a frame of {length} bytes"
                    break
                frame = json.loads(await self._reader.readexactly(length))
                self._last_frame = time.monotonic()
                reply = self._replies.get(frame.get("id", 0))
                if reply is not None and not reply.done():
                    reply.set_result(frame)
        except (asyncio.IncompleteReadError, ConnectionError) as error:
            reason = str(error) or reason
        finally:
            self._writer.close()
            for reply in self._replies.values():
                if not reply.done():
                    reply.set_exception(ConnectionLostError(reason))


class ShellSandbox:
    """sandbox.types.Sandbox over a ShellClient and a workdir on this host.

    A backend passes how to bring the shells back after they died (`revive`: a new client and what to tell the agent,
    or SandboxUnavailableError), and how to end everything (`release`).
    """

    def __init__(
        self,
        *,
        config: SandboxConfig,
        client: ShellClient,
        workdir: Path,
        home: str,
        files: Workdir,
        revive: Callable[[], Awaitable[tuple[ShellClient, str]]],
        release: Callable[[], Awaitable[None]],
        process_ids: Callable[[], list[int]],
    ):
        self.workdir = workdir
        """Where the files are on the host while the sandbox is open."""
        self.home = home
        """The same directory as the agent's shell sees it."""
        self._config, self._client, self._files = config, client, files
        self._revive, self._release, self._process_ids = revive, release, process_ids
        self._sessions: dict[str, asyncio.Lock] = {}
        self._reviving = asyncio.Lock()
        self._allowed_bytes = config.disk_mb << 20
        self._watch = asyncio.create_task(self._watch_disk())
        self._closing: asyncio.Task[None] | None = None

    async def exec(self, command: str, *, timeout_s: float, session: str = "main") -> ExecResult:
        """See sandbox.types.Sandbox.exec. Time in which hold_clock() is on, or the machine froze us, does not count."""
        if "\0" in command or len(command.encode("utf-8", "surrogateescape")) > MAX_COMMAND_BYTES:
            return ExecResult(exit_code=126, output=f"[a command has no NUL and at most {MAX_COMMAND_BYTES >> 20} MiB]")
        async with self._sessions.setdefault(session, asyncio.Lock()):
            self._check_open()
            client, begun = self._client, time.monotonic()
            try:
                return await client.exec(command, timeout_s, session)
            except ConnectionLostError as error:
                self._check_open()
                note = await self._bring_back(client, error)
                return ExecResult(exit_code=137, output=note, seconds=time.monotonic() - begun)

    async def read_file(self, path: str) -> str:
        self._check_open()
        return await asyncio.to_thread(self._files.read, self._relative(path))

    async def write_file(self, path: str, text: str) -> None:
        self._check_open()
        used = await asyncio.to_thread(usage_bytes, self.workdir)
        if used is None or used + len(text) > self._config.disk_mb << 20:
            raise OSError(errno.EDQUOT, f"the workdir may hold {self._config.disk_mb} MB", path)
        await asyncio.to_thread(self._files.write, self._relative(path), text)

    @contextlib.contextmanager
    def hold_clock(self) -> Iterator[None]:
        """Stops the time limits of running commands, for example while the judge makes one of them wait."""
        client = self._client
        with contextlib.suppress(ConnectionLostError):  # then no command is running either
            client.send(op="hold", on=True)
        try:
            yield
        finally:
            with contextlib.suppress(ConnectionLostError):  # a new server starts with its clock running
                client.send(op="hold", on=False)

    def process_ids(self) -> list[int]:
        """Roots of the sandbox's process trees as this host numbers them: what a quiet lease freezes."""
        return self._process_ids()

    async def close(self) -> None:
        if self._closing is None:
            self._closing = asyncio.create_task(self._close())
        await asyncio.shield(self._closing)

    async def _close(self) -> None:
        self._watch.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await self._watch
        await self._client.close()
        self._files.close()
        await self._release()

    def _check_open(self) -> None:
        if self._closing is not None:
            raise SandboxUnavailableError("the sandbox is closed")

    def _relative(self, path: str) -> str:
        return path.removeprefix(self.home.rstrip("/") + "/")

    async def _bring_back(self, lost: ShellClient, error: ConnectionLostError) -> str:
        async with self._reviving:
            if self._client is not lost:  # another session's command was first
                return "[the sandbox ended and was started anew; all shells are new]"
            await lost.close()
            self._client, note = await self._revive()
            return f"[the sandbox ended ({note or error}) and was started anew; all shells are new]"

    async def _watch_disk(self) -> None:
        """A bind mount has no size limit, so usage is looked at once a second; whatever fills the disk is killed."""
        limit_mb = self._config.disk_mb
        limits = f"{limit_mb} MB, {MAX_ENTRIES} files and {MAX_DEPTH} levels of folders"
        note = f"[stopped: the workdir may hold {limits}; every process was killed, delete files]"
        while True:
            await asyncio.sleep(1.0)
            used = await asyncio.to_thread(usage_bytes, self.workdir)
            if used is not None and used <= self._allowed_bytes:
                self._allowed_bytes = max(limit_mb << 20, min(self._allowed_bytes, used + _USAGE_SLACK_BYTES))
                continue
            with contextlib.suppress(ConnectionLostError):
                self._client.send(op="kill", note=note)
            # what is there may stay until the agent has deleted it, but it may not grow
            self._allowed_bytes = (used or self._allowed_bytes) + _USAGE_SLACK_BYTES
            if used is None:
                await asyncio.sleep(_DELETE_S)
