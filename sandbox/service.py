"""What `verify`, `profile` and `compile` in a workdir talk to: a unix socket at .service/sock, answered by the judge.

One JSON line in, one JSON line out, then the connection closes:

    {"command": "verify"}        ->  {"ok": true, "text": "correct ...", "judgement": {...}}

`ok` is accepted (of `compile`: compiled, of `sanitize`: nothing found). `text` is what the client prints. What an
agent sends is never more than one of four words; the files are read from the workdir by the host, in the moment of the
request.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path

from sandbox import unix_sockets
from sandbox.skill import collect_candidate
from sandbox.types import Candidate, CompileResult, Judge, Judgement, Outcome, Task

DIRECTORY, NAME = ".service", "sock"
COMMANDS = ("verify", "profile", "compile", "sanitize")
MAX_REQUEST_BYTES = 4096
MAX_CONNECTIONS = 4
_REQUEST_TIMEOUT_S = 10.0


class WorkdirService:
    """Answers one agent's requests, one at a time.

    `compile` (blocking, thread-safe: CompileService.compile) answers `compile`; without it, `compile` is judged like
    `verify`. `hold_clock` (Sandbox.hold_clock) stops the agent's time limits while the judge is at work: waiting for
    a device is not the agent's fault.
    """

    def __init__(
        self,
        judge: Judge,
        task: Task,
        skill: str,
        workdir: Path,
        *,
        compile: Callable[[str, Candidate], CompileResult] | None = None,
        hold_clock: Callable[[], AbstractContextManager[None]] = contextlib.nullcontext,
    ):
        self._judge, self._task, self._skill, self._workdir = judge, task, skill, workdir
        self._compile, self._hold_clock = compile, hold_clock
        self._turn = asyncio.Lock()
        self._server: asyncio.Server | None = None
        self._handlers: set[asyncio.Task[None]] = set()
        self.judgements: list[Judgement] = []
        """Every judgement given here, in order."""
        self.failure: Exception | None = None
        """Trouble of ours in a request: whoever runs the agent raises it instead of going on."""

    @property
    def last_judgement(self) -> Judgement | None:
        return self.judgements[-1] if self.judgements else None

    async def start(self) -> None:
        """Binds the socket. With a sandbox: after it is opened, on its `workdir`."""
        directory = self._workdir / DIRECTORY
        directory.mkdir(mode=0o755, exist_ok=True)
        listener = unix_sockets.listen(directory, NAME)
        self._server = await asyncio.start_unix_server(self._accept, sock=listener, limit=MAX_REQUEST_BYTES)

    async def close(self) -> None:
        """Stops answering; a request in progress is given up. Safe to call twice."""
        if self._server is None:
            return
        server, self._server = self._server, None
        server.close()
        for handler in list(self._handlers):
            handler.cancel()
        await asyncio.gather(*self._handlers, return_exceptions=True)
        with contextlib.suppress(OSError):  # the agent may have put anything there; only a name in a folder goes
            fd = os.open(self._workdir / DIRECTORY, os.O_DIRECTORY | os.O_NOFOLLOW)
            try:
                os.unlink(NAME, dir_fd=fd)
            finally:
                os.close(fd)

    def raise_failure(self) -> None:
        """Raises the first trouble of ours, if there was any."""
        if self.failure is not None:
            raise self.failure

    async def answer(self, command: str) -> dict[str, object]:
        """The reply to one command. Exceptions of the judge are trouble of ours and propagate."""
        async with self._turn:
            with self._hold_clock():
                candidate = await asyncio.to_thread(collect_candidate, self._workdir)
                if command == "compile" and self._compile is not None:
                    result = await asyncio.to_thread(self._compile, self._skill, candidate)
                    return _reply(result.artifact is not None, _compile_text(result), None)
                if command == "sanitize":
                    found = await self._judge.sanitize(self._task, candidate, skill=self._skill)
                    return _reply(found.clean, found.text, None)
                timed = command == "profile"
                judgement = await self._judge.judge(self._task, candidate, skill=self._skill, timed=timed)
        if command == "compile":
            ok = judgement.outcome not in (Outcome.REFUSED, Outcome.COMPILE_ERROR)
            return _reply(ok, "compiled" if ok else judgement_text(judgement), None)
        self.judgements.append(judgement)
        return _reply(judgement.accepted, judgement_text(judgement), judgement)

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        handler = asyncio.current_task()
        assert handler is not None
        self._handlers.add(handler)
        try:
            await self._handle(reader, writer)
        except (ConnectionError, asyncio.CancelledError):
            pass  # the client is gone (its command timed out), or we are closing
        finally:
            self._handlers.discard(handler)
            writer.close()

    async def _handle(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if len(self._handlers) > MAX_CONNECTIONS:
            reply = _reply(False, f"busy: {MAX_CONNECTIONS} requests are waiting already", None)
        else:
            reply = await self._reply_to(reader)
        writer.write(json.dumps(reply).encode() + b"\n")
        await writer.drain()

    async def _reply_to(self, reader: asyncio.StreamReader) -> dict[str, object]:
        usage = 'send one line: {"command": "verify"}, "profile", "compile" or "sanitize"'
        try:
            line = await asyncio.wait_for(reader.readline(), _REQUEST_TIMEOUT_S)
            command = json.loads(line)["command"]
        except (ValueError, TypeError, KeyError, TimeoutError, RecursionError):
            return _reply(False, f"not understood; {usage}", None)
        if command not in COMMANDS:
            return _reply(False, f"unknown command; {usage}", None)
        try:
            return await self.answer(command)
        except Exception as error:  # not the agent's fault, and nothing it should read: the rollout is repeated
            self.failure = self.failure or error
            return _reply(False, "the judge is not available", None)


def judgement_text(judgement: Judgement) -> str:
    """What an agent reads of a judgement: outcome, message (with the times, where it was timed), reward."""
    outcome, message = str(judgement.outcome), judgement.message
    text = message if message.startswith(outcome) else f"{outcome}: {message}" if message else outcome
    return text if judgement.reward is None else f"{text}\nreward: {judgement.reward:g}"


def _compile_text(result: CompileResult) -> str:
    return result.message or ("compiled" if result.artifact else "not compiled")


def _reply(ok: bool, text: str, judgement: Judgement | None) -> dict[str, object]:
    return {"ok": ok, "text": text, "judgement": judgement.to_json() if judgement else None}
