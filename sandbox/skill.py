"""Skills: what an agent is told, the files its workdir starts with, and which of them are judged."""

from __future__ import annotations

import functools
import itertools
import os
import re
import stat
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from sandbox.types import Candidate, Task

SKILLS_ROOT = Path(__file__).resolve().parent.parent / "skills"
EXTENSION_MODULES = {
    "cpp": "cpp_kernels",
    "cpp_agent": "cpu_extension",
    "cuda": "cuda_kernels",
    "cuda_agent": "cuda_extension",
}
"""Name of the module that model_new.py imports, by skill."""
MAX_FILE_BYTES = 256 * 1024
MAX_KERNEL_FILES = 32
MAX_ENTRIES = 1000
"""Of kernels/, whatever they are: no folder is listed for minutes, and no reason is given a million times."""
KERNEL_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]*\.(cpp|cc|cxx|h|hpp|cu|cuh)")


class SkillError(ValueError):
    """The skill does not exist or its folder is incomplete."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Skill:
    """One way to write kernels."""

    name: str
    toolchain: Literal["cpp", "cuda"]
    extension_module: str
    root: Path
    guide: str
    """SKILL.md."""
    template: dict[str, str] = field(repr=False)
    """Files of a fresh workdir by relative path; the agent may read them, the judge takes its own copies."""

    @property
    def plain_abi(self) -> bool:
        """Kernels behind extern "C"; otherwise the CUDA-Agent layout, an extension module on torch's headers."""
        return not self.name.endswith("_agent")

    @property
    def device(self) -> Literal["cpu", "cuda"]:
        """Where candidates run, and so which JudgeConfig.device can judge them."""
        return "cuda" if self.toolchain == "cuda" else "cpu"


@functools.cache
def load_skill(name: str) -> Skill:
    """The skill in skills/`name`. Raises SkillError with the names there are."""
    if name not in EXTENSION_MODULES:
        raise SkillError(f"skill={name!r} is not known; allowed: {', '.join(sorted(EXTENSION_MODULES))}")
    root = SKILLS_ROOT / name
    if not (root / "SKILL.md").is_file() or not (SKILLS_ROOT / "common" / "workdir").is_dir():
        raise SkillError(
            f"skill={name!r}: {SKILLS_ROOT} has no {name}/SKILL.md or no common/workdir; restore the "
            "folder `skills` that ships next to the package `sandbox`"
        )
    toolchain = "cuda" if name.startswith("cuda") else "cpp"
    template = _texts(SKILLS_ROOT / "common" / "workdir") | _texts(root / "workdir")
    if toolchain == "cuda":
        template |= _texts(SKILLS_ROOT / "common" / "cuda")
    return Skill(
        name=name,
        toolchain=toolchain,
        extension_module=EXTENSION_MODULES[name],
        root=root,
        guide=(root / "SKILL.md").read_text(encoding="utf-8"),
        template=template,
    )


def _texts(folder: Path) -> dict[str, str]:
    return {
        path.relative_to(folder).as_posix(): path.read_text(encoding="utf-8")
        for path in sorted(folder.rglob("*"))
        if path.is_file() and "__pycache__" not in path.parts
    }


def lay_out(skill: Skill, task: Task, workdir: Path) -> None:
    """Writes a fresh workdir: model.py, SKILL.md, an empty kernels/ and the skill's read-only tools.

    Read-only is advice to the agent; what counts is that the judge never reads these files back.
    """
    workdir.mkdir(parents=True, exist_ok=True)
    (workdir / "kernels").mkdir(exist_ok=True)
    fixed = skill.template | {"SKILL.md": skill.guide, "model.py": task.code}
    for relative, text in fixed.items():
        path = workdir / relative
        path.parent.mkdir(parents=True, exist_ok=True)
        if path.exists():
            path.chmod(0o644)
        path.write_text(text, encoding="utf-8")
        path.chmod(0o444)


def collect_candidate(workdir: Path) -> Candidate:
    """The judged files of a workdir: model_new.py and kernels/*, read without following a link.

    Whatever is no plain UTF-8 text file of at most MAX_FILE_BYTES counts as absent; `omitted` says why.
    """
    files: dict[str, str] = {}
    omitted: dict[str, str] = {}
    try:
        root = os.open(workdir, os.O_RDONLY | os.O_DIRECTORY)
    except FileNotFoundError:
        return Candidate(files={}, omitted={"model_new.py": "the workdir does not exist"})
    try:
        _collect(root, "model_new.py", "model_new.py", files, omitted)
        _collect_kernels(root, files, omitted)
    finally:
        os.close(root)
    return Candidate(files=files, omitted=omitted)


def collect_model_new(path: Path) -> Candidate:
    """A candidate of one file, which stands for its model_new.py; read as collect_candidate reads."""
    files: dict[str, str] = {}
    omitted: dict[str, str] = {}
    folder = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY)
    try:
        _collect(folder, path.name, "model_new.py", files, omitted)
    finally:
        os.close(folder)
    return Candidate(files=files, omitted=omitted)


def _collect_kernels(root: int, files: dict[str, str], omitted: dict[str, str]) -> None:
    try:
        kernels = os.open("kernels", os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW, dir_fd=root)
    except FileNotFoundError:
        return
    except OSError as error:
        omitted["kernels"] = f"is no plain folder ({error.strerror})"
        return
    try:
        with os.scandir(kernels) as entries:
            names = [entry.name for entry in itertools.islice(entries, MAX_ENTRIES + 1)]
        if len(names) > MAX_ENTRIES:
            omitted["kernels"] = f"holds more than {MAX_ENTRIES} entries"
            return
        taken = 0
        for name in sorted(names):
            if not KERNEL_NAME.fullmatch(name):
                if not name.startswith("."):
                    omitted[f"kernels/{name}"[:200]] = "is no kernel source: .cpp .cc .cxx .h .hpp .cu .cuh"
            elif taken == MAX_KERNEL_FILES:
                omitted[f"kernels/{name}"] = f"is one of more than {MAX_KERNEL_FILES} files"
            else:
                _collect(kernels, name, f"kernels/{name}", files, omitted)
                taken += 1
    finally:
        os.close(kernels)


def _collect(folder: int, name: str, relative: str, files: dict[str, str], omitted: dict[str, str]) -> None:
    try:
        # O_NONBLOCK: opening a FIFO without a writer would wait for ever.
        descriptor = os.open(name, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK, dir_fd=folder)
    except FileNotFoundError:
        return
    except OSError as error:
        omitted[relative] = f"cannot be opened without following a link ({error.strerror})"
        return
    with open(descriptor, "rb") as stream:
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            omitted[relative] = "is no regular file"
            return
        content = stream.read(MAX_FILE_BYTES + 1)
    if len(content) > MAX_FILE_BYTES:
        omitted[relative] = f"is larger than {MAX_FILE_BYTES // 1024} KiB"
    elif b"\0" in content:
        omitted[relative] = "is a binary file"
    else:
        try:
            files[relative] = content.decode("utf-8")
        except UnicodeDecodeError:
            omitted[relative] = "is no UTF-8 text"
