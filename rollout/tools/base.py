"""A tool call becomes an observation: the tools of one dialogue, what they share, and how their results are cut."""

from __future__ import annotations

import errno
import hashlib
import posixpath
from collections.abc import Awaitable, Callable, Sequence
from typing import Protocol

from rollout.tools.meter import MeteredSandbox
from rollout.tools.schema import ToolSchema, check_call
from rollout.types import ToolCall
from sandbox.types import Judgement, Sandbox

_CANDIDATE_ERRORS = (PermissionError, IsADirectoryError, NotADirectoryError, FileExistsError)
_CANDIDATE_ERRNOS = {errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.ENAMETOOLONG, errno.ELOOP, errno.EINVAL}


class ToolError(Exception):
    """The call is well formed and could not be done; the message goes to the model as its observation."""


class Tool(Protocol):
    """One tool."""

    schema: ToolSchema

    @property
    def run(self) -> Callable[..., Awaitable[str]]:
        """Takes the schema's parameters by name and returns the observation. Raises ToolError, or a file error that
        the model caused."""
        ...


class Files:
    """The workspace's files as the model knows them: what it may overwrite, and what changed behind its back."""

    def __init__(self, sandbox: Sandbox, *, read_before_write: bool, home: str = "") -> None:
        """`home`: the workdir as the model's shell calls it; paths below it are taken as relative ones."""
        self._sandbox = sandbox
        self._home = home.rstrip("/")
        self._read_before_write = read_before_write
        self._known: dict[str, str] = {}

    async def read(self, path: str) -> str:
        path = self._relative(path)
        text = await self._sandbox.read_file(path)
        self._known[path] = _digest(text)
        return text

    async def write(self, path: str, text: str) -> bool:
        """Replaces the whole file; True where it is a new one. An existing one must have been read as it now is."""
        path = self._relative(path)
        is_new = await self._check_known(path)
        await self._sandbox.write_file(path, text)
        self._known[path] = _digest(text)
        return is_new

    async def read_known(self, path: str) -> str:
        """The text of a file that the model has read or written, for an edit of it."""
        path = self._relative(path)
        if await self._check_known(path):
            raise ToolError(f"{path} does not exist; create it with write")
        return await self._sandbox.read_file(path)

    def _relative(self, path: str) -> str:
        cleaned = clean_path(path)
        return cleaned.removeprefix(self._home + "/") if self._home else cleaned

    async def _check_known(self, path: str) -> bool:
        try:
            current = await self._sandbox.read_file(path)
        except FileNotFoundError:
            return True
        if self._read_before_write:
            if path not in self._known:
                raise ToolError(f"{path} exists and you have not read it; read it first")
            if self._known[path] != _digest(current):
                raise ToolError(f"{path} changed since you read it; read it again")
        return False


class ToolBox:
    """The tools of one dialogue: checks a call, runs it, and turns whatever happens into a text of limited length."""

    def __init__(
        self,
        tools: Sequence[Tool],
        *,
        max_chars: int,
        judgements: Sequence[Judgement] = (),
        raise_failure: Callable[[], None] = lambda: None,
        meter: MeteredSandbox | None = None,
    ) -> None:
        """`judgements` grows while tools run: the verdicts that `verify` and `profile` obtained in this workdir.
        `raise_failure` is called after every tool and raises trouble of ours that the tool's text would hide.
        `meter`: the sandbox that the tools use, where its time is limited.
        """
        self._tools = {tool.schema.name: tool for tool in tools}
        self._max_chars = max_chars
        self._raise_failure = raise_failure
        self._meter = meter
        self.judgements = judgements

    @property
    def schemas(self) -> list[ToolSchema]:
        return [tool.schema for tool in self._tools.values()]

    @property
    def exhausted(self) -> bool:
        """Whether the sandbox's time of this dialogue is used up."""
        return self._meter is not None and self._meter.exhausted

    def check(self, call: ToolCall) -> ToolCall:
        return check_call(call, self.schemas)

    async def act(self, call: ToolCall) -> str:
        """The observation of a checked call. Trouble that is not the model's (SandboxUnavailableError) is raised."""
        if call.error is not None:
            return self._cut(f"error: {call.error}")
        try:
            text = await self._tools[call.name].run(**call.arguments)
        except ToolError as error:
            text = f"error: {error}"
        except (OSError, UnicodeError) as error:
            message = _explain(error, call.arguments.get("path", ""))
            if message is None:
                raise
            text = f"error: {message}"
        self._raise_failure()
        return self._cut(text)

    def _cut(self, text: str) -> str:
        return cut_middle(text, self._max_chars)


def clean_path(path: str) -> str:
    """`./a//b` as `a/b`. What leaves the workdir is refused here in words, and again by the sandbox in fact."""
    cleaned = posixpath.normpath(path.strip()) if path.strip() else ""
    if not cleaned or "\0" in cleaned or "\n" in cleaned:
        raise ToolError("path must name a file")
    if cleaned == ".." or cleaned.startswith("../"):
        raise ToolError(f"{path} is outside the workdir")
    return cleaned


def cut_middle(text: str, max_chars: int) -> str:
    """At most `max_chars` characters: the first part says what went wrong, the last how it ended."""
    if len(text) <= max_chars:
        return text
    mark = f"\n[... {len(text) - max_chars} characters cut ...]\n"
    room = max(max_chars - len(mark), 0)
    tail = room // 3
    return text[: room - tail] + mark + (text[-tail:] if tail else "")


def _explain(error: OSError | UnicodeError, path: str) -> str | None:
    """What the model did wrong, or None where the error is ours."""
    if isinstance(error, UnicodeError):
        return "the file is not UTF-8 text"
    if isinstance(error, FileNotFoundError):
        return f"no such file: {path}"
    if isinstance(error, _CANDIDATE_ERRORS) or error.errno in _CANDIDATE_ERRNOS:
        return f"{path}: {error.strerror or error}" if path else str(error)
    return None


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()
