"""What a workdir's tools would answer to the scripted expert: text for lessons and for the tokenizer.

Nothing is compiled or run: a kernel is right where it is one of those that the language has for its task, and the
numbers are drawn.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

import numpy as np

from jaxagent.synthesis.frames import CPP, CUDA, AnyStyle, Dialect, kernel_source
from jaxagent.synthesis.kernels import Program
from rollout.types import ToolCall
from sandbox.reward import eq1

VERIFY = "python3 utils/verification.py"
PROFILE = "python3 utils/profiling.py"

DECLARATION = r"^.*\bfloat v\[[CN]\].*\n"
"""The line that declares the row."""
PASSED = "correct in 11 checks; not timed"
_FAILED = "\nreward: -1\n[exit 1]"


class ImaginedWorkdir:
    """One dialogue's files, by their text. `rng` draws numbers."""

    def __init__(self, program: Program, rng: np.random.Generator, dialect: Dialect = CPP) -> None:
        self._program, self._rng, self._dialect = program, rng, dialect
        self._kernels = {kernel_source(program, style).removesuffix("\n"): style for style in dialect.styles}
        self._files: dict[str, str] = {}

    @property
    def is_right(self) -> bool:
        return self._files.get(self._dialect.kernel) in self._kernels

    def answer(self, calls: Sequence[ToolCall]) -> list[str]:
        """One result a call: of `write`, and of `bash` with VERIFY or PROFILE."""
        return [self._answer(call) for call in calls]

    def _answer(self, call: ToolCall) -> str:
        if call.name == "write":
            path = call.arguments["path"]
            verb = "wrote" if path in self._files else "created"
            self._files[path] = call.arguments["content"]
            return f"{verb} {path}"
        kernel = self._files[self._dialect.kernel]
        if not self.is_right:
            return failed_check(self._program, kernel, self._rng, self._dialect)
        is_check = call.arguments["command"] == VERIFY
        return PASSED if is_check else timing(self._kernels[kernel], self._rng, self._dialect)


def failed_check(program: Program, kernel: str, rng: np.random.Generator, dialect: Dialect = CPP) -> str:
    """What verification prints of a kernel that is not right."""
    lines = kernel.splitlines()
    if kernel.count("{") > kernel.count("}"):
        return _unclosed(dialect, lines)
    if not re.search(DECLARATION, kernel, re.MULTILINE):
        uses = r"v\[j\]|LOAD\(v" if dialect is CUDA else r"v\[j\]"
        number, line = next(
            (k, line) for k, line in enumerate(lines, start=1) if re.search(uses, line) and "#" not in line
        )
        return _undeclared(dialect, number, line)
    total = program.rows * (1 if program.reduces else program.cols)
    got, expected, error = rng.normal(size=2).tolist() + [abs(rng.normal()) + 0.01]
    place = "[0]" if program.reduces else "[0, 0]"
    return (
        f"wrong: check 1 (fresh inputs): the output: {total - int(rng.integers(600)):,} of {total:,} elements differ; "
        f"first at {place}: got {got:.7g}, expected {expected:.7g} (allowed error {rng.uniform(6e-5, 4e-4):.2g}); "
        f"largest error {error:.3g}{_FAILED}"
    )


def _unclosed(dialect: Dialect, lines: Sequence[str]) -> str:
    """As nvcc says it, or g++."""
    if dialect is CUDA:
        number = max(k for k, line in enumerate(lines, start=1) if line.endswith("{"))
        text = 'At end of source: error: expected a "}"\n'
        text += f'{dialect.kernel}({number}): note #3196-D: to match this "{{"\n  {lines[number - 1]}'
    else:
        text = f"{dialect.kernel}:{len(lines)}:2: error: expected '}}' at end of input\n"
        text += f"{len(lines):5d} | {lines[-1]}\n      |  ^"
    return f"compile_error: {text}{_FAILED}"


def _undeclared(dialect: Dialect, number: int, line: str) -> str:
    if dialect is CUDA:
        text = f'{dialect.kernel}({number}): error: identifier "v" is undefined\n  {line}\n  ^'
    else:
        text = f"{dialect.kernel}:{number}:6: error: 'v' was not declared in this scope\n"
        text += f"{number:5d} | {line}\n      |      ^"
    return f"compile_error: {text}{_FAILED}"


def timing(style: AnyStyle, rng: np.random.Generator, dialect: Dialect = CPP) -> str:
    """What profiling prints of a right kernel: the best style wins clearly, the second now and then, others lose."""
    eager, compiled = rng.uniform(3, 12), rng.uniform(1.5, 6)
    if dialect is CUDA:
        eager, compiled = eager / 30, compiled / 30
    factor = dict(zip(dialect.styles, (rng.uniform(0.3, 0.8), rng.uniform(0.5, 1.3)), strict=False))
    ms = compiled * factor.get(style, rng.uniform(4, 15))
    return (
        f"correct; {ms:.4g} ms (quartiles {0.95 * ms:.4g}–{1.1 * ms:.4g}), torch eager {eager:.4g} ms: "
        f"{eager / ms:.2f}x, torch.compile {compiled:.4g} ms: {compiled / ms:.2f}x\n"
        f"reward: {eq1(ms, eager, compiled):g}"
    )
