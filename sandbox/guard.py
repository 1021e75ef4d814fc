"""Refusals before anything of a candidate runs: what model_new.py and the kernels may say.

Static rules cannot be the defence: they name early and plainly what the judge's own processes would catch later.
model_new.py is read as a syntax tree and C++ without its comments, so words in comments and strings decide nothing.
"""

from __future__ import annotations

from sandbox.kernel_text import check_kernel_text, rules_of
from sandbox.model_text import check_model
from sandbox.model_words import ALLOWED_IMPORTS
from sandbox.skill import KERNEL_NAME, Skill
from sandbox.symbol_lists import ALLOWED_ATEN
from sandbox.symbols import check_symbols
from sandbox.types import Candidate

__all__ = ["ALLOWED_ATEN", "ALLOWED_IMPORTS", "check_kernels", "check_source", "check_symbols"]

_MAX_REASONS = 8


def check_source(skill: Skill, candidate: Candidate) -> str | None:
    """A refusal that says where and why, or None. Never runs or compiles anything."""
    model = candidate.files.get("model_new.py")
    if model is None:
        reason = candidate.omitted.get("model_new.py")
        return _refusal(f"model_new.py {reason}" if reason else "model_new.py is missing; write it with class ModelNew")
    problem = check_model(model, skill.extension_module)
    return _refusal(problem) if problem else check_kernels(skill, candidate)


def check_kernels(skill: Skill, candidate: Candidate) -> str | None:
    """The part of check_source that looks at kernels/. CompileService asks it too: the compiler runs on the host, and
    a source could otherwise read the host's files through an include or an assembler directive."""
    kernels = {path: text for path, text in candidate.files.items() if path.startswith("kernels/")}
    if not any(path.endswith(rules_of(skill).needed) for path in kernels):
        omitted = [f"; {path} {reason}" for path, reason in candidate.omitted.items() if path != "model_new.py"]
        reasons = "".join(omitted[:_MAX_REASONS])
        needed = rules_of(skill).needed[0]
        return _refusal(f"kernels/ holds no {needed} file; the work has to be done by kernels of your own{reasons}")
    for path, text in sorted(kernels.items()):
        if not KERNEL_NAME.fullmatch(path.removeprefix("kernels/")) or not path.endswith(rules_of(skill).suffixes):
            suffixes = " ".join(rules_of(skill).suffixes)
            return _refusal(f"{path!r} is no name for a kernel; allowed: kernels/NAME with one of {suffixes}")
        problem = check_kernel_text(skill, path, text, kernels)
        if problem is not None:
            return _refusal(problem)
    return None


def _refusal(problem: str) -> str:
    return f"refused: {problem}"
