"""What a synthesis has found out so far, in an append-only log beside its output: nothing is run or asked for twice."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from jaxagent.synthesis.config import SynthesisConfig, SynthesisError, identity
from rollout.record_format import Entry
from rollout.record_log import RecordLog
from sandbox.taskcheck.probe import Evidence

_HEAD, _EAGER, _COMPILE, _REPLY = 1, 2, 3, 4
_KINDS = {"eager": _EAGER, "compile": _COMPILE, "reply": _REPLY}


class EvidenceLog:
    """Evidence by phase and content of the code, and a language model's replies by prompt. One writer."""

    def __init__(self, folder: Path, config: SynthesisConfig, *, resume: bool) -> None:
        """Raises SynthesisError where the folder is another synthesis's, or there without `resume`; StoreError."""
        self._entries: dict[tuple[int, bytes], Entry] = {}
        if folder.exists() and any(folder.iterdir()) and not resume:
            raise SynthesisError(f"{folder} holds a synthesis: continue it with --resume, or take another --out")
        self._log = RecordLog(folder, writable=True, fsync=False, segment_bytes=256 << 20)
        for entry in self._log.scan():
            self._entries[entry.kind, entry.key] = entry
        self.num_resumed = sum(kind in (_EAGER, _COMPILE) for kind, _ in self._entries)
        self._check_head(config, folder)

    def get(self, phase: str, key: str) -> Evidence | None:
        entry = self._entries.get((_KINDS[phase], key.encode()))
        return None if entry is None else json.loads(self._log.read(entry))

    def put(self, phase: str, key: str, evidence: Evidence) -> None:
        """Raises StoreError where there is no room; nothing half-written remains."""
        payload = json.dumps(evidence).encode()
        entry = self._log.append(_KINDS[phase], key.encode(), payload)
        self._entries[_KINDS[phase], key.encode()] = entry

    def close(self) -> None:
        self._log.close()

    def _check_head(self, config: SynthesisConfig, folder: Path) -> None:
        mine = identity(config)
        entry = self._entries.get((_HEAD, b""))
        if entry is None:
            self._entries[_HEAD, b""] = self._log.append(_HEAD, b"", json.dumps(mine).encode())
            return
        theirs = json.loads(self._log.read(entry))
        changed = [key for key in _leaves(mine) if _leaves(mine)[key] != _leaves(theirs).get(key)]
        if changed:
            self._log.close()
            raise SynthesisError(
                f"{folder} was begun with another {', '.join(changed)}; restore the config, or take another --out. "
                "num_tasks, max_candidates, block, validation, executor and the number of devices may change"
            )


def _leaves(values: dict[str, Any], prefix: str = "") -> dict[str, Any]:
    found: dict[str, Any] = {}
    for key, value in values.items():
        found |= _leaves(value, f"{prefix}{key}.") if isinstance(value, dict) else {f"{prefix}{key}": value}
    return found
