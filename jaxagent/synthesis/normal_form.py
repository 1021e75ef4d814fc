"""A program without what does not change its meaning, so that copies look alike."""

from __future__ import annotations

import ast
import builtins
import io
import tokenize


def normalised(code: str) -> str:
    """The code without comments and docstrings, with its own names numbered in the order of their appearance.

    Names of what is imported, of Python itself, and of the task's contract stay. Raises SyntaxError.
    """
    tree = _WithoutDocstrings().visit(ast.parse(code))
    renamed = _Renamer(_own_names(tree)).visit(tree)
    return ast.unparse(ast.fix_missing_locations(renamed))


def tokens_of(code: str) -> list[str]:
    """Tokens of the normal form, numbers blanked: what MinHash compares."""
    found = []
    for token in tokenize.generate_tokens(io.StringIO(normalised(code)).readline):
        if token.type == tokenize.NUMBER:
            found.append("0")
        elif token.type in (tokenize.NAME, tokenize.OP, tokenize.STRING):
            found.append(token.string)
    return found


_CONTRACT = frozenset({"Model", "get_inputs", "get_init_inputs", "forward", "__init__", "self", "super"})


def _own_names(tree: ast.AST) -> list[str]:
    """Names that the program binds itself, in the order of their appearance."""
    names: dict[str, None] = {}
    for node in ast.walk(tree):
        if isinstance(node, (ast.FunctionDef, ast.ClassDef)):
            names[node.name] = None
        elif isinstance(node, ast.arg):
            names[node.arg] = None
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            names[node.id] = None
        elif isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store):
            names[node.attr] = None
    return [name for name in names if name not in _CONTRACT and not hasattr(builtins, name)]


class _Renamer(ast.NodeTransformer):
    """Numbers the program's own names: variables, arguments, functions, classes, and attributes of self."""

    def __init__(self, own: list[str]) -> None:
        self._own = frozenset(own)
        self._new: dict[str, str] = {}

    def visit_Name(self, node: ast.Name) -> ast.AST:
        return ast.copy_location(ast.Name(self._rename(node.id), node.ctx), node)

    def visit_arg(self, node: ast.arg) -> ast.AST:
        self.generic_visit(node)
        return ast.copy_location(ast.arg(self._rename(node.arg), None), node)

    def visit_Attribute(self, node: ast.Attribute) -> ast.AST:
        self.generic_visit(node)
        is_own = isinstance(node.value, ast.Name) and node.value.id == "self"
        return ast.copy_location(
            ast.Attribute(node.value, self._rename(node.attr) if is_own else node.attr, node.ctx), node
        )

    def visit_FunctionDef(self, node: ast.FunctionDef) -> ast.AST:
        node.name, node.returns = self._rename(node.name), None
        return self.generic_visit(node)

    def visit_ClassDef(self, node: ast.ClassDef) -> ast.AST:
        node.name = self._rename(node.name)
        return self.generic_visit(node)

    def _rename(self, name: str) -> str:
        if name not in self._own:
            return name
        return self._new.setdefault(name, f"v{len(self._new)}")


class _WithoutDocstrings(ast.NodeTransformer):
    """Also without annotations of variables, which only tell readers something."""

    def visit_Expr(self, node: ast.Expr) -> ast.AST | None:
        is_text = isinstance(node.value, ast.Constant) and isinstance(node.value.value, str)
        return None if is_text else self.generic_visit(node)

    def visit_AnnAssign(self, node: ast.AnnAssign) -> ast.AST:
        self.generic_visit(node)
        return node if node.value is None else ast.copy_location(ast.Assign([node.target], node.value), node)

    def _with_body(self, node: ast.FunctionDef | ast.ClassDef) -> ast.AST:
        self.generic_visit(node)
        node.body = node.body or [ast.Pass()]
        return node

    visit_FunctionDef = _with_body
    visit_ClassDef = _with_body
