"""Rules on a candidate's text alone. Each takes the code and returns a Finding or None; nothing is run."""

from __future__ import annotations

import ast
import sys
from collections.abc import Callable, Iterator

from jaxagent.synthesis.reasons import FilterConfig, Finding, Reason
from sandbox.tasks import REQUIRED_FUNCTIONS

_FORBIDDEN_PARTS = (
    "torch.utils.cpp_extension",
    "torch.utils.data",
    "torch.hub",
    "torch.distributed",
    "torch.multiprocessing",
    "torch.ops.load_library",
    "torch.load",
    "torch.save",
    "numpy.load",
    "numpy.save",
    "numpy.ctypeslib",
    "transformers.pipeline",
)
"""Parts of allowed packages that reach files, processes or the network."""
_FORBIDDEN_NAMES = ("__import__", "eval", "exec", "compile", "__builtins__", "globals", "breakpoint")


def syntax_error(code: str, config: FilterConfig) -> Finding | None:
    """The text is not Python."""
    try:
        ast.parse(code)
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
        return Finding(Reason.SYNTAX_ERROR, f"{type(error).__name__}: {error}")
    return None


def no_model(code: str, config: FilterConfig) -> Finding | None:
    """No class Model with a forward of its own or of a base class."""
    models = [node for node in ast.parse(code).body if isinstance(node, ast.ClassDef) and node.name == "Model"]
    if not models:
        return Finding(Reason.NO_MODEL, "no class Model at the top level")
    methods = {node.name for node in models[-1].body if isinstance(node, ast.FunctionDef)}
    if "forward" not in methods and all(_is_plain_module(base) for base in models[-1].bases):
        return Finding(Reason.NO_MODEL, "class Model has no forward")
    return None


def missing_get_inputs(code: str, config: FilterConfig) -> Finding | None:
    """get_inputs or get_init_inputs is not there."""
    defined = {node.name for node in ast.parse(code).body if isinstance(node, ast.FunctionDef)}
    missing = [name for name in REQUIRED_FUNCTIONS if name not in defined]
    if not missing:
        return None
    return Finding(Reason.MISSING_GET_INPUTS, " and ".join(f"no {name}() at the top level" for name in missing))


def import_forbidden(code: str, config: FilterConfig) -> Finding | None:
    """An import outside of the allowed packages, or a way around imports."""
    tree = ast.parse(code)
    for name in _imported(tree):
        root = name.lstrip(".").partition(".")[0]
        if name.startswith(".") or root not in config.allowed_imports:
            known = "a module of Python" if root in sys.stdlib_module_names else "a package"
            return Finding(Reason.IMPORT_FORBIDDEN, f"imports {name}, {known} that tasks may not use")
    aliases = _aliases(tree)
    for node in ast.walk(tree):
        if isinstance(node, ast.Name) and node.id in _FORBIDDEN_NAMES:
            return Finding(Reason.IMPORT_FORBIDDEN, f"uses {node.id}, which can import anything")
        name = _dotted(node, aliases)
        if name is not None and _is_forbidden(name):
            return Finding(Reason.IMPORT_FORBIDDEN, f"uses {name}, which reaches files, processes or the network")
    for name in _imported(tree):
        if _is_forbidden(name):
            return Finding(Reason.IMPORT_FORBIDDEN, f"imports {name}, which reaches files, processes or the network")
    return None


STATIC_RULES: tuple[Callable[[str, FilterConfig], Finding | None], ...] = (
    syntax_error,
    no_model,
    missing_get_inputs,
    import_forbidden,
)


def static_finding(code: str, config: FilterConfig) -> Finding | None:
    """The first objection to the text. Later rules need what earlier ones have ensured."""
    return next((found for rule in STATIC_RULES if (found := rule(code, config)) is not None), None)


def _is_plain_module(base: ast.expr) -> bool:
    return (
        isinstance(base, ast.Attribute)
        and base.attr == "Module"
        or isinstance(base, ast.Name)
        and base.id
        in (
            "Module",
            "object",
        )
    )


def _imported(tree: ast.AST) -> Iterator[str]:
    """Full names of what is imported anywhere in the code."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = "." * node.level + (node.module or "")
            yield from (f"{base}.{alias.name}" for alias in node.names)


def _aliases(tree: ast.AST) -> dict[str, str]:
    """Local name -> full name, for imports."""
    names: dict[str, str] = {}
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            for alias in node.names:
                names[alias.asname or alias.name.partition(".")[0]] = (
                    alias.name if alias.asname else alias.name.partition(".")[0]
                )
        elif isinstance(node, ast.ImportFrom):
            names |= {alias.asname or alias.name: f"{node.module}.{alias.name}" for alias in node.names}
    return names


def _dotted(node: ast.AST, aliases: dict[str, str]) -> str | None:
    """The full name of an attribute chain that begins at an import."""
    parts: list[str] = []
    while isinstance(node, ast.Attribute):
        parts.append(node.attr)
        node = node.value
    if not parts or not isinstance(node, ast.Name) or node.id not in aliases:
        return None
    return ".".join([aliases[node.id], *reversed(parts)])


def _is_forbidden(name: str) -> bool:
    return any(name == part or name.startswith(f"{part}.") for part in _FORBIDDEN_PARTS)
