"""glob, grep: where something is in the workspace."""

from __future__ import annotations

import re
import shlex

from rollout.tools.base import ToolError, clean_path
from rollout.tools.schema import Parameter, ToolSchema
from rollout.tools.shell import HELPER_SESSION
from sandbox.types import ExecResult, Sandbox

_TIMEOUT_S = 20.0
_SKIPPED = (".service", ".jobs", "__pycache__")


class Glob:
    schema = ToolSchema(
        "glob",
        "Lists the files whose path matches a pattern such as kernels/*.cpp or **/*.py, sorted.",
        (
            Parameter("pattern", "string", "Pattern, relative to path; ** matches any number of folders."),
            Parameter("path", "string", "Folder to look in; default: the workdir.", required=False),
        ),
    )

    def __init__(self, sandbox: Sandbox) -> None:
        self._sandbox = sandbox

    async def run(self, *, pattern: str, path: str = ".") -> str:
        where = clean_path(path)
        matcher = glob_to_regex(pattern.strip().removeprefix("./"))
        prune = " -o ".join(f"-name {name}" for name in _SKIPPED)
        command = f"find {shlex.quote('./' + where)} \\( {prune} \\) -prune -o -type f -printf '%P\\n'"
        found = await _search(self._sandbox, command, narrower="look into one folder with bash")
        inside = [line for line in found.output.splitlines() if matcher.fullmatch(line)]
        if found.exit_code != 0 and not inside:
            raise ToolError(found.output.strip() or f"find ended with {found.exit_code}")
        paths = sorted(line if where == "." else f"{where}/{line}" for line in inside)
        if found.truncated:
            paths.append("[more files than can be listed; results are incomplete]")
        return "\n".join(paths) or "no file matches"


class Grep:
    schema = ToolSchema(
        "grep",
        "Shows the lines that match an extended regular expression as path:line:text.",
        (
            Parameter("pattern", "string", "Extended regular expression."),
            Parameter("path", "string", "File or folder to search; default: all.", required=False),
            Parameter("include", "string", "Only files whose name matches, such as *.cpp.", required=False),
            Parameter("ignore_case", "boolean", "Take upper and lower case as the same.", required=False),
        ),
    )

    def __init__(self, sandbox: Sandbox) -> None:
        self._sandbox = sandbox

    async def run(self, *, pattern: str, path: str = ".", include: str = "", ignore_case: bool = False) -> str:
        where = clean_path(path)
        chosen = (f"--include={shlex.quote(include)} " if include else "") + ("-i " if ignore_case else "")
        excluded = " ".join(f"--exclude-dir={name}" for name in _SKIPPED)
        command = f"grep -rnHIE {chosen}{excluded} -e {shlex.quote(pattern)} -- {shlex.quote(where)}"
        result = await _search(self._sandbox, command, narrower="narrow path or pattern")
        if result.exit_code == 1:
            return "no line matches"
        if result.exit_code != 0:
            raise ToolError(result.output.strip() or f"grep ended with {result.exit_code}")
        return "\n".join(line.removeprefix("./") for line in result.output.rstrip().split("\n"))


async def _search(sandbox: Sandbox, command: str, *, narrower: str) -> ExecResult:
    """`narrower`: what to do about one that takes too long."""
    found = await sandbox.exec(command, timeout_s=_TIMEOUT_S, session=HELPER_SESSION)
    if found.exit_code is None:
        raise ToolError(f"the search took longer than {_TIMEOUT_S:g} s; {narrower}")
    return found


def glob_to_regex(pattern: str) -> re.Pattern[str]:
    """`*` and `?` stay within one folder, `**/` is any number of folders, `[abc]` a set."""
    if not pattern:
        raise ToolError("pattern is empty")
    pieces: list[str] = []
    for token in re.findall(r"\*\*/|\*\*|\*|\?|\[!?[^\]]+\]|.", pattern, flags=re.DOTALL):
        if token == "**/":
            pieces.append("(?:[^/]+/)*")
        elif token == "**":
            pieces.append(".*")
        elif token == "*":
            pieces.append("[^/]*")
        elif token == "?":
            pieces.append("[^/]")
        elif token.startswith("[") and len(token) > 2:
            body = token[1:-1].replace("\\", "\\\\")
            pieces.append(f"[^{body[1:]}]" if body.startswith("!") else f"[{body}]")
        else:
            pieces.append(re.escape(token))
    try:
        return re.compile("".join(pieces), flags=re.DOTALL)
    except re.error as error:
        raise ToolError(f"pattern {pattern!r} is not valid: {error}") from error
