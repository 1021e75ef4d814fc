"""Verdicts of a run on disk, so that a run that goes on, or starts from another one, judges no kernel again.

One JSON line a verdict, appended by the one coordinator of the run. A line that a crash cut short is dropped.
"""

from __future__ import annotations

import hashlib
import json
import logging
from pathlib import Path
from typing import Any

from sandbox.baselines import machine_fingerprint
from sandbox.config import JudgeConfig
from sandbox.types import Candidate, Judgement, Task

logger = logging.getLogger(__name__)

VERSION = 4
"""Raise it when the judge comes to another verdict of the same files: what older ones said is then not used."""
_NO_MATTER = {"num_devices", "jobs_per_device", "max_retries", "baseline_dir"}
"""Fields of JudgeConfig that change where and how often a candidate is judged, and never what is said of it."""


class Verdicts:
    """What was said of (task, files, skill, kind of judgement), by this machine under these settings."""

    def __init__(self, config: JudgeConfig, path: Path | None = None) -> None:
        """`path` None: nothing is kept beyond the process."""
        settings = config.model_dump(mode="json", exclude=_NO_MATTER)
        self._about = [VERSION, settings, machine_fingerprint()]
        self._path = path
        self._known: dict[str, dict[str, Any]] = {}
        self._torn = False
        """The last line was not written whole."""
        if path is not None and path.exists():
            self._read(path)

    def key(self, task: Task, candidate: Candidate, skill: str, timed: bool) -> str:
        content = [task.code, sorted(candidate.files.items()), skill, timed, self._about]
        return hashlib.sha256(json.dumps(content).encode()).hexdigest()

    def get(self, key: str) -> Judgement | None:
        record = self._known.get(key)
        return None if record is None else Judgement.from_json(record)

    def add(self, key: str, judgement: Judgement) -> None:
        """A disk without room costs a second judgement later, not this one."""
        if self._path is None:
            return
        line = json.dumps({"key": key, "judgement": judgement.to_json()}) + "\n"
        try:
            with self._path.open("a") as file:
                file.write("\n" + line if self._torn else line)
            self._torn = False
        except OSError as error:
            self._torn = True
            logger.warning("a verdict was not kept in %s: %s", self._path, error)

    def _read(self, path: Path) -> None:
        """Reads all whole lines, and cuts off what follows the last of them."""
        with path.open("rb+") as file:
            content = file.read()
            whole = content.rfind(b"\n") + 1
            file.truncate(whole)
        for line in content[:whole].splitlines():
            try:
                record = json.loads(line)
            except ValueError:
                continue  # a line that a full disk cut short
            self._known[record["key"]] = record["judgement"]
