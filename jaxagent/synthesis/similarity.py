"""Structural similarity of two programs' syntax trees, the measure of contamination of the CUDA Agent paper.

Subtrees rooted at certain nodes are paired one to one so that the weighted number of matching nodes is largest:

    score = 2 sum over pairs (matched(a, b) * (w_a + w_b) / 2) / (sum w_a |a| + sum w_b |b|)

over all such subtrees a of one and b of the other program, |a| nodes in a. Nodes match where type and number of
children agree; children are then paired for the most matches. Names and constants do not count.
"""

from __future__ import annotations

import ast
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from scipy.optimize import linear_sum_assignment

_WEIGHTS: dict[type[ast.AST], float] = {
    ast.Import: 0.3,
    ast.FunctionDef: 1.2,
    ast.If: 0.5,
    ast.ClassDef: 1.0,
    ast.While: 1.0,
    ast.For: 1.0,
    ast.comprehension: 1.0,
    ast.Return: 1.0,
}


class SimilarityError(ValueError):
    """A program that cannot be compared."""


@dataclass(eq=False)
class Node:
    """A syntax node reduced to what is compared. `shape` is equal for trees that match everywhere."""

    kind: type[ast.AST]
    children: list[Node]

    @cached_property
    def size(self) -> int:
        return 1 + sum(child.size for child in self.children)

    @cached_property
    def shape(self) -> int:
        return hash((self.kind.__name__, *(child.shape for child in self.children)))


class Structure:
    """A program prepared for comparison with others."""

    def __init__(self, code: str, *, class_name: str | None = "Model", bare: bool = False) -> None:
        """`class_name`: compare that class alone; None compares the whole program.

        Docstrings are left out. `bare` also leaves out annotations and the arguments of super(), which change what
        nodes match and nothing else. Raises SimilarityError for text that is no Python or has no such class.
        """
        tree = _tree(code, class_name, bare=bare)
        self.roots = [(_WEIGHTS[node.kind], node) for node in _walk(tree) if node.kind in _WEIGHTS]
        self.total = sum(weight * node.size for weight, node in self.roots)


def similarity(first: Structure, second: Structure, *, at_least: float = 0.0) -> float:
    """The score in [0, 1], to four digits; 0.0 without an assignment where it cannot reach `at_least`."""
    total = first.total + second.total
    if total == 0 or 2 * min(first.total, second.total) / total < at_least:
        return 0.0
    known: dict[tuple[int, int], int] = {}
    gains = np.array(
        [[0.5 * (wa + wb) * _matched(a, b, known) for wb, b in second.roots] for wa, a in first.roots]
    ).reshape(len(first.roots), len(second.roots))
    rows, columns = linear_sum_assignment(gains, maximize=True)
    return round(2 * float(gains[rows, columns].sum()) / total, 4)


def nearest(code: str, others: Sequence[tuple[str, Structure]], *, count: int = 3) -> list[tuple[str, float]]:
    """Names and scores of the most similar of `others`, best first."""
    mine = Structure(code)
    scored = [(name, similarity(mine, other)) for name, other in others]
    return sorted(scored, key=lambda pair: (-pair[1], pair[0]))[:count]


def _tree(code: str, class_name: str | None, *, bare: bool) -> Node:
    try:
        tree: ast.AST = ast.parse(code)
    except (SyntaxError, ValueError) as error:
        raise SimilarityError(f"the program is not Python: {error}") from error
    if class_name is not None:
        found = [node for node in ast.walk(tree) if isinstance(node, ast.ClassDef) and node.name == class_name]
        if not found:
            raise SimilarityError(f"the program has no class {class_name}")
        tree = found[-1]
    return _node(_Bare().visit(tree) if bare else tree)


class _Bare(ast.NodeTransformer):
    """Without annotations, and with super() for super(Model, self)."""

    def visit_FunctionDef(self, node: ast.FunctionDef) -> ast.AST:
        node.returns = None
        return self.generic_visit(node)

    def visit_arg(self, node: ast.arg) -> ast.AST:
        node.annotation = None
        return node

    def visit_Call(self, node: ast.Call) -> ast.AST:
        if isinstance(node.func, ast.Name) and node.func.id == "super":
            node.args = []
        return self.generic_visit(node)


def _node(tree: ast.AST) -> Node:
    children = [child for child in ast.iter_child_nodes(tree) if not _is_docstring(tree, child)]
    return Node(type(tree), [_node(child) for child in children])


def _is_docstring(parent: ast.AST, child: ast.AST) -> bool:
    if not isinstance(parent, (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)):
        return False
    return parent.body[:1] == [child] and isinstance(child, ast.Expr) and _is_text(child.value)


def _is_text(value: ast.expr) -> bool:
    return isinstance(value, ast.Constant) and isinstance(value.value, str)


def _walk(node: Node) -> list[Node]:
    return [node, *(below for child in node.children for below in _walk(child))]


def _matched(first: Node, second: Node, known: dict[tuple[int, int], int]) -> int:
    """Nodes that match when `first` is laid on `second`."""
    if first.kind is not second.kind or len(first.children) != len(second.children):
        return 0
    if first.shape == second.shape:
        return first.size
    key = (first.shape, second.shape)
    if key not in known:
        gains = np.array([[_matched(a, b, known) for b in second.children] for a in first.children])
        rows, columns = linear_sum_assignment(gains, maximize=True)
        known[key] = 1 + int(gains[rows, columns].sum())
    return known[key]
