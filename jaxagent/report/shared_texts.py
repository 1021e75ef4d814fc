"""Texts that many trajectories of a report have in common, each once: prompts, and the code of tasks."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from jaxagent.synthesis.sources import resolve_tasks
from rollout.chat import ChatFormat
from rollout.types import Trajectory
from sandbox.tasks import TaskError


class SharedTexts:
    """Prompts and tasks' code, each once. Where its source is gone (a run that was moved) a reason stands in."""

    def __init__(self, model_dir: Path | None, task_sources: Iterable[str]) -> None:
        """`model_dir` has the tokenizer; None where the policy spoke text alone."""
        self._prompts: dict[bytes, int] = {}
        self._texts: list[str] = []
        self._missing: list[str] = []
        self._used_tasks: set[str] = set()
        self._token_texts: dict[int, str] = {}
        self._tasks = self._load_tasks(task_sources)
        self._chat = self._load_chat(model_dir) if model_dir is not None else None

    def add(self, trajectory: Trajectory) -> int | None:
        """Index of the trajectory's opening; None where it cannot be decoded, or the policy speaks text only."""
        self._used_tasks.add(trajectory.task_id)
        if self._chat is None or not trajectory.turns or not len(trajectory.turns[0].prompt_token_ids):
            return None
        token_ids = trajectory.turns[0].prompt_token_ids
        key = token_ids.tobytes()
        if key not in self._prompts:
            self._prompts[key] = len(self._texts)
            self._texts.append(self._chat.decode_raw(token_ids))
        return self._prompts[key]

    def token_texts(self, token_ids: Sequence[int]) -> list[str] | None:
        """The text of every token for itself; None where the tokenizer is gone. Parts of a character show as such."""
        if self._chat is None:
            return None
        for token in token_ids:
            if token not in self._token_texts:
                self._token_texts[token] = self._chat.decode_raw([token])
        return [self._token_texts[token] for token in token_ids]

    def to_json(self) -> dict[str, Any]:
        tasks = {task: self._tasks[task] for task in sorted(self._used_tasks) if task in self._tasks}
        return {"tasks": tasks, "prompts": self._texts, "missing": self._missing}

    def _load_tasks(self, sources: Iterable[str]) -> dict[str, str]:
        codes: dict[str, str] = {}
        for source in sources:
            try:
                codes |= {task.task_id: task.code for task in resolve_tasks(source)}
            except (TaskError, OSError) as error:
                self._missing.append(f"code of the tasks in {source}: {error}")
        return codes

    def _load_chat(self, model_dir: Path) -> ChatFormat | None:
        try:
            return ChatFormat.from_folder(model_dir)
        except OSError as error:
            self._missing.append(f"prompts: {error}")
            return None
