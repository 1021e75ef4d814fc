"""An engine whose answers are known beforehand: token ids in and out as VllmEngine's, in the time that a load says.

It measures everything around a model (actors, tools, router, store, staleness) without one. Versions are kept for each
token: an update that lands while a reply is under way parts its tokens in two.
"""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import numpy as np

from rollout.chat import ChatFormat
from rollout.packages import Package
from rollout.parsers import make_parser
from rollout.scripted_load import TurnLoad
from rollout.types import Completion, EngineError, SamplingParams

_KERNEL = """\
// {session}, attempt {turn}
extern "C" void scale(const float* x, float* y, long n) {{
  for (long i = 0; i < n; ++i) y[i] = {turn} * x[i];
}}
"""
_MODEL = """\
import torch
import cpp_kernels


class ModelNew(torch.nn.Module):  # {session}
    def forward(self, x):
        y = torch.empty_like(x)
        cpp_kernels.scale(x, y, x.numel())
        return y
"""


class ScriptedEngine:
    """VllmEngine's methods over a TurnLoad. A dialogue writes a kernel (which compiles and is wrong), the model that
    calls it, reads, writes again, and ends.

    The turn is counted in the prompt, and so are a repeated dialogue's: the engine keeps no state of any.
    """

    def __init__(self, tokenizer_dir: str | Path, load: TurnLoad, *, parser: str = "qwen3_coder") -> None:
        self._tokenizer_dir, self._load, self._parser = tokenizer_dir, load, make_parser(parser)
        self._chat: ChatFormat | None = None
        self._version = 0

    @property
    def version(self) -> int:
        return self._version

    async def start(self, *, version: int = 0) -> float:
        """Raises FileNotFoundError where there is no tokenizer."""
        self._chat = ChatFormat.from_folder(self._tokenizer_dir)
        self._version = version
        return 0.0

    async def generate(self, prompt_token_ids: np.ndarray, params: SamplingParams, session_id: str = "") -> Completion:
        """The next reply of the session's dialogue. Raises EngineError before `start`."""
        if self._chat is None:
            raise EngineError("the scripted engine cannot be used: it was not started")
        seconds = self._load.turn_seconds(session_id)
        turn = min(self._chat.count_replies(prompt_token_ids), len(seconds) - 1)
        before = self._version
        await asyncio.sleep(seconds[turn])
        text = self._text(session_id, turn, is_last=turn == len(seconds) - 1)
        token_ids = self._chat.encode_reply(text)[: params.max_tokens]
        versions = np.full(len(token_ids), self._version, np.int32)
        versions[: -(-len(token_ids) // 2)] = before
        ends_itself = int(token_ids[-1]) in params.stop_token_ids
        return Completion(
            token_ids=token_ids,
            logprobs=np.zeros(len(token_ids), np.float32),
            policy_versions=versions,
            finish_reason="stop" if ends_itself else "length",
        )

    async def publish(self, package: Package, version: int | None = None) -> dict[str, Any]:
        """Takes the package's version; there are no weights to read."""
        self._version = package.version
        return {"version": package.version, "num_bytes": 0, "pause_s": 0.0}

    async def check_health(self, *, timeout_s: float = 30.0) -> None:
        """Raises EngineError before `start`, as VllmEngine does."""
        if self._chat is None:
            raise EngineError("the scripted engine cannot be used: it was not started")

    def process_ids(self) -> list[int]:
        return []

    async def close(self) -> None:
        self._chat = None

    def _text(self, session_id: str, turn: int, *, is_last: bool) -> str:
        if is_last:
            return "Done."
        path, template = ("model_new.py", _MODEL) if turn == 1 else ("kernels/k.cpp", _KERNEL)
        if turn > 1 and turn % 2:
            return "I read what there is now.\n" + self._parser.render("read", {"path": path})
        source = template.format(turn=turn, session=session_id)
        return "I write the next file.\n" + self._parser.render("write", {"path": path, "content": source})
