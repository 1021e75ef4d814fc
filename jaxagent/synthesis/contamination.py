"""Tasks that are too close to a problem of KernelBench, on which a trained policy is to be measured."""

from __future__ import annotations

import ast
import operator
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeGuard

from jaxagent.synthesis.reasons import FilterConfig, Finding, Reason
from jaxagent.synthesis.similarity import SimilarityError, Structure, similarity

_ARITHMETIC: dict[type[ast.operator], Any] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.FloorDiv: operator.floordiv,
}


class KernelBenchError(ValueError):
    """The folder given as KernelBench holds none of its problems."""


@dataclass(frozen=True)
class Problem:
    """One problem, with what its text tells of its operators and of the shapes of its inputs."""

    name: str
    structure: Structure
    bare: Structure
    """Without annotations: a task without them would otherwise match none of the problems, which all have them."""
    operators: tuple[str, ...]
    shapes: tuple[tuple[int, ...], ...]


class KernelBench:
    """The problems of a checkout, prepared for comparison. Their code is parsed, never run."""

    def __init__(self, folder: Path) -> None:
        """`folder` holds level1, level2, …, at any depth. Raises KernelBenchError."""
        paths = sorted(
            path for path in folder.expanduser().rglob("*.py") if re.fullmatch(r"level\d+", path.parent.name)
        )
        self.problems: list[Problem] = []
        for path in paths:
            try:
                code = path.read_text(encoding="utf-8")
                structures = _both(code)
            except (SimilarityError, UnicodeDecodeError):
                continue
            name = f"{path.parent.name}/{path.stem}"
            self.problems.append(Problem(name, *structures, called_operators(code), stated_shapes(code)))
        if not self.problems:
            raise KernelBenchError(
                f"kernelbench: {folder} holds no level1/…/*.py with a class Model; give a checkout of KernelBench"
            )

    def neighbours(self, code: str, *, count: int = 3) -> list[tuple[str, float]]:
        """The problems most similar to a task's Model, best first."""
        mine = _both(code)
        scored = ((problem.name, _similarity(mine, problem)) for problem in self.problems)
        return sorted(scored, key=lambda pair: (-pair[1], pair[0]))[:count]

    def similar(self, code: str, config: FilterConfig) -> Finding | None:
        """A problem too similar in structure, or with the same operators on nearly the same shapes."""
        mine = _both(code)
        for problem in self.problems:
            score = _similarity(mine, problem, at_least=config.max_similarity)
            if score > config.max_similarity:
                return Finding(Reason.KERNELBENCH_SIMILAR, f"similarity {score:.4f} to {problem.name}")
        operators, shapes = called_operators(code), stated_shapes(code)
        for problem in self.problems:
            same = bool(operators and shapes) and problem.operators == operators
            if same and _are_near(shapes, problem.shapes, config.max_size_ratio):
                what = f"the operators of {problem.name} on its shapes: {', '.join(operators)}"
                return Finding(Reason.KERNELBENCH_SIMILAR, what)
        return None


def _both(code: str) -> tuple[Structure, Structure]:
    return Structure(code), Structure(code, bare=True)


def _similarity(mine: tuple[Structure, Structure], problem: Problem, *, at_least: float = 0.0) -> float:
    """The larger of the two: of the text as it is, and without annotations."""
    return max(
        similarity(mine[0], problem.structure, at_least=at_least), similarity(mine[1], problem.bare, at_least=at_least)
    )


def called_operators(code: str) -> tuple[str, ...]:
    """Names of torch modules and functions in the order of the text of class Model, without free ones."""
    found: list[tuple[int, int, str]] = []
    for node in ast.walk(ast.parse(code)):
        if not isinstance(node, ast.ClassDef) or node.name != "Model":
            continue
        for call in ast.walk(node):
            if isinstance(call, ast.Call) and isinstance(call.func, ast.Attribute):
                name, base = call.func.attr, ast.unparse(call.func.value)
                if base in ("nn", "F", "torch", "torch.nn", "torch.nn.functional", "nn.functional"):
                    found.append((call.lineno, call.col_offset, name.lower().replace("_", "")))
    return tuple(name for _, _, name in sorted(found) if name not in ("parameter", "randn", "zeros", "ones"))


def stated_shapes(code: str) -> tuple[tuple[int, ...], ...]:
    """Shapes of the random tensors that get_inputs makes, as far as its text and the constants above it tell."""
    sizes: dict[str, Any] = {}
    shapes: list[tuple[int, ...]] = []
    for node in ast.parse(code).body:
        if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name):
            sizes[node.targets[0].id] = _constant(node.value, sizes)
        elif isinstance(node, ast.FunctionDef) and node.name == "get_inputs":
            shapes += [_shape_of(call, sizes) for call in ast.walk(node) if _makes_random_tensor(call)]
    return tuple(shapes)


def _makes_random_tensor(node: ast.AST) -> TypeGuard[ast.Call]:
    if not isinstance(node, ast.Call) or not isinstance(node.func, ast.Attribute):
        return False
    return node.func.attr in ("rand", "randn", "rand_mix")


def _shape_of(call: ast.Call, sizes: dict[str, Any]) -> tuple[int, ...]:
    """A size that cannot be read off is 0."""
    found: list[int] = []
    for argument in call.args:
        is_starred = isinstance(argument, ast.Starred)
        value = _constant(argument.value if is_starred else argument, sizes)
        found += list(value) if isinstance(value, (tuple, list)) else [value]
    return tuple(size if isinstance(size, int) else 0 for size in found)


def _constant(node: ast.expr, known: dict[str, Any]) -> Any:
    """The value of an expression of whole numbers, tuples and known names; None for anything else."""
    if isinstance(node, ast.Constant):
        return node.value if isinstance(node.value, int) else None
    if isinstance(node, ast.Name):
        return known.get(node.id)
    if isinstance(node, (ast.Tuple, ast.List)):
        return tuple(_constant(item, known) for item in node.elts)
    if isinstance(node, ast.BinOp) and type(node.op) in _ARITHMETIC:
        left, right = _constant(node.left, known), _constant(node.right, known)
        if isinstance(left, int) and isinstance(right, int) and abs(left) < 1 << 40 and 0 < right < 1 << 40:
            return _ARITHMETIC[type(node.op)](left, right)
    return None


def _are_near(mine: tuple[tuple[int, ...], ...], theirs: tuple[tuple[int, ...], ...], max_ratio: float) -> bool:
    if [len(shape) for shape in mine] != [len(shape) for shape in theirs]:
        return False
    pairs = [(a, b) for x, y in zip(mine, theirs, strict=True) for a, b in zip(x, y, strict=True)]
    return all(min(a, b) > 0 and max(a, b) <= max_ratio * min(a, b) for a, b in pairs)
