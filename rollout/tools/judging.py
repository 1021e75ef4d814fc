"""compile, verify, profile: what the scripts in utils/ ask the judge, without a shell in between."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping

from rollout.tools.schema import ToolSchema

Ask = Callable[[str], Awaitable[Mapping[str, object]]]
"""WorkdirService.answer: one of `compile`, `verify`, `profile` in, a reply with `text` out. Raises trouble of ours."""

_DESCRIPTIONS = {
    "compile": "Compiles kernels/ as the judge does and shows the first errors.",
    "verify": "Compares ModelNew with Model on fresh random inputs.",
    "profile": "Verifies, then times ModelNew, Model in eager mode and Model under torch.compile.",
}


class JudgeTool:
    """One of the judge's commands. It takes no arguments: what is judged is the workdir as it is now."""

    def __init__(self, command: str, ask: Ask) -> None:
        self.schema = ToolSchema(command, _DESCRIPTIONS[command], ())
        self._command, self._ask = command, ask

    async def run(self) -> str:
        return str((await self._ask(self._command))["text"])


def judge_tools(ask: Ask) -> list[JudgeTool]:
    return [JudgeTool(command, ask) for command in _DESCRIPTIONS]


async def nobody(command: str) -> Mapping[str, object]:
    """Stands for the judge where tools are made for their schemas alone."""
    raise RuntimeError(f"{command}: no judge is connected to these tools")
