"""Red-team submissions: what is judged, and the verdict it has to get.

A case is a folder with expect.json and the files of a workdir (model.py, model_new.py, kernels/). One with `base`, the
name of a folder of redteam/bases or a list of such names, lies over these and holds only what differs.
"""

from __future__ import annotations

import json
import shutil
from dataclasses import dataclass
from pathlib import Path

from sandbox.skill import EXTENSION_MODULES, collect_candidate
from sandbox.types import Candidate, Judgement, Outcome, Task

OWN = Path(__file__).parent / "redteam"


@dataclass(frozen=True, slots=True)
class Case:
    """`outcomes`: any of these rejections is right; a kernel that does not compile proves nothing unless named."""

    name: str
    kind: str
    accept: bool
    outcomes: tuple[str, ...]
    words: tuple[str, ...]
    skill: str
    task: Task
    candidate: Candidate

    def is_right(self, judgement: Judgement) -> bool:
        if self.accept or judgement.accepted:
            return self.accept and judgement.accepted
        return judgement.outcome in self.outcomes and all(word in judgement.message for word in self.words)

    @property
    def expected(self) -> str:
        return "accept" if self.accept else "reject"


def load(folder: Path, scratch: Path) -> list[Case]:
    """The cases of a folder, by name; `scratch` takes the workdirs."""
    found = sorted(path.parent for path in folder.glob("*/expect.json"))
    if not found:
        raise SystemExit(f"{folder} holds no cases: folders with expect.json, model.py, model_new.py and kernels/")
    return [_load(path, scratch / path.name) for path in found]


def _load(source: Path, workdir: Path) -> Case:
    expected = json.loads((source / "expect.json").read_text())
    if "base" in expected:
        bases = expected["base"] if isinstance(expected["base"], list) else [expected["base"]]
        for base in bases:
            shutil.copytree(OWN / "bases" / base, workdir, dirs_exist_ok=True)
        for path in source.rglob("*"):  # a link could not be copied over a file
            if not path.is_dir():
                (workdir / path.relative_to(source)).unlink(missing_ok=True)
    shutil.copytree(source, workdir, symlinks=True, dirs_exist_ok=True)
    candidate = collect_candidate(workdir)
    anything_but_compile = tuple(outcome for outcome in Outcome if outcome is not Outcome.COMPILE_ERROR)
    return Case(
        name=source.name,
        kind=expected["class"],
        accept=expected["verdict"] == "accept",
        outcomes=tuple(expected.get("outcomes", anything_but_compile)),
        words=tuple(expected.get("words", ())),
        skill=_skill_of(candidate),
        task=Task(task_id=source.name, code=(workdir / "model.py").read_text()),
        candidate=candidate,
    )


def _skill_of(candidate: Candidate) -> str:
    """The skill whose module the model imports; a model that imports none can be judged under any."""
    model = candidate.files.get("model_new.py", "")
    return next((skill for skill, module in EXTENSION_MODULES.items() if module in model), "cpp_agent")
