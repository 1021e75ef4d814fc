"""What a workdir's tools would answer to the scripted expert: text for lessons and for the tokenizer.

Nothing is compiled or run: a kernel is right where it is one of the four that the language has for its task, and the
numbers are drawn.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from jaxagent.synthesis.kernels import Program, Style, kernel_source
from rollout.types import ToolCall
from sandbox.reward import eq1

VERIFY = "python3 utils/verification.py"
PROFILE = "python3 utils/profiling.py"
KERNEL = "kernels/kernel.cpp"

PASSED = "correct in 11 checks; not timed"
_FAILED = "\nreward: -1\n[exit 1]"


class ImaginedWorkdir:
    """One dialogue's files, by their text. `rng` draws numbers."""

    def __init__(self, program: Program, rng: np.random.Generator) -> None:
        self._program, self._rng = program, rng
        self._kernels = {kernel_source(program, style).removesuffix("\n"): style for style in Style}
        self._files: dict[str, str] = {}

    @property
    def is_right(self) -> bool:
        return self._files.get(KERNEL) in self._kernels

    def answer(self, calls: Sequence[ToolCall]) -> list[str]:
        """One result a call: of `write`, and of `bash` with VERIFY or PROFILE."""
        return [self._answer(call) for call in calls]

    def _answer(self, call: ToolCall) -> str:
        if call.name == "write":
            path = call.arguments["path"]
            verb = "wrote" if path in self._files else "created"
            self._files[path] = call.arguments["content"]
            return f"{verb} {path}"
        if not self.is_right:
            return failed_check(self._program, self._files[KERNEL], self._rng)
        return PASSED if call.arguments["command"] == VERIFY else timing(self._kernels[self._files[KERNEL]], self._rng)


def failed_check(program: Program, kernel: str, rng: np.random.Generator) -> str:
    """What verification prints of a kernel that is not right."""
    lines = kernel.splitlines()
    if kernel.count("{") > kernel.count("}"):
        number, line = len(lines), lines[-1]
        return (
            f"compile_error: {KERNEL}:{number}:2: error: expected '}}' at end of input\n"
            f"{number:5d} | {line}\n      |  ^{_FAILED}"
        )
    if "float v[C], s;" not in lines:
        number, line = next((k, line) for k, line in enumerate(lines, start=1) if "v[j]" in line)
        return (
            f"compile_error: {KERNEL}:{number}:6: error: 'v' was not declared in this scope\n"
            f"{number:5d} | {line}\n      |      ^{_FAILED}"
        )
    total = program.rows * (1 if program.reduces else program.cols)
    got, expected, error = rng.normal(size=2).tolist() + [abs(rng.normal()) + 0.01]
    place = "[0]" if program.reduces else "[0, 0]"
    return (
        f"wrong: check 1 (fresh inputs): the output: {total - int(rng.integers(600)):,} of {total:,} elements differ; "
        f"first at {place}: got {got:.7g}, expected {expected:.7g} (allowed error {rng.uniform(6e-5, 4e-4):.2g}); "
        f"largest error {error:.3g}{_FAILED}"
    )


def timing(style: Style, rng: np.random.Generator) -> str:
    """What profiling prints of a right kernel: vector code in parallel wins clearly, scalar code loses."""
    eager, compiled = rng.uniform(3, 12), rng.uniform(1.5, 6)
    factor = {Style.VECTOR_PARALLEL: rng.uniform(0.3, 0.8), Style.VECTOR_SERIAL: rng.uniform(0.5, 1.3)}
    ms = compiled * factor.get(style, rng.uniform(4, 15))
    return (
        f"correct; {ms:.4g} ms (quartiles {0.95 * ms:.4g}–{1.1 * ms:.4g}), torch eager {eager:.4g} ms: "
        f"{eager / ms:.2f}x, torch.compile {compiled:.4g} ms: {compiled / ms:.2f}x\n"
        f"reward: {eq1(ms, eager, compiled):g}"
    )
