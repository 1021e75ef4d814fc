"""Refusals before anything of a candidate runs: what model_new.py and the kernels may say.

Static rules cannot be the defence: they name early and plainly what the judge's own processes would catch later.
model_new.py is read as a syntax tree and C++ without its comments, so words in comments and strings decide nothing.
"""

from __future__ import annotations

import ast

from sandbox.kernel_text import check_kernel_text, rules_of
from sandbox.skill import KERNEL_NAME, Skill
from sandbox.symbols import ALLOWED_ATEN, check_symbols
from sandbox.types import Candidate

__all__ = ["ALLOWED_ATEN", "ALLOWED_IMPORTS", "check_kernels", "check_source", "check_symbols"]

ALLOWED_IMPORTS = frozenset(
    {
        "torch",
        "torch.nn",
        "math",
        "typing",
        "dataclasses",
        "functools",
        "itertools",
        "collections",
        "collections.abc",
        "enum",
        "__future__",
    }
)
_REFUSED_NAMES = frozenset(
    {
        "exec",
        "eval",
        "compile",
        "open",
        "__import__",
        "globals",
        "locals",
        "vars",
        "breakpoint",
        "memoryview",
        "__builtins__",
        "__loader__",
        "__spec__",
        "exit",
        "quit",
    }
)
_REFUSED_TORCH = frozenset(
    {
        "compile",
        "jit",
        "ops",
        "classes",
        "library",
        "utils",
        "hub",
        "load",
        "save",
        "overrides",
        "multiprocessing",
        "distributed",
        "testing",
        "fx",
        "export",
        "func",
        "profiler",
        "package",
        "serialization",
        "from_file",
        "monitor",
        "set_num_threads",
        "set_num_interop_threads",
        "use_deterministic_algorithms",
        "set_default_device",
        "cuda",
        "accelerator",
        "backends",
        "get_rng_state",
        "set_rng_state",
        "random",
        "manual_seed",
        "seed",
        "initial_seed",
        "default_generator",
    }
)
"""Attributes of torch that compile, load, patch or steer; operators are left to the judge's record of what ran."""
_MODULES_IN_MODULES = frozenset(
    {
        "sys",
        "os",
        "builtins",
        "ctypes",
        "inspect",
        "importlib",
        "types",
        "threading",
        "gc",
        "subprocess",
        "socket",
        "platform",
        "textwrap",
        "re",
        "abc",
        "copyreg",
        "contextlib",
        "warnings",
        "traceback",
        "_sys",
        "_os",
        "_weakref",
        "weakref",
        "operator",
    }
)
_ALLOWED_DUNDERS = frozenset(
    {"__init__", "__name__", "__class__", "__doc__", "__len__", "__post_init__", "__version__", "__qualname__"}
)
_REFUSED_METHODS = frozenset(
    {
        "load_state_dict",
        "state_dict",
        "_load_from_state_dict",
        "_save_to_state_dict",
        "named_parameters",
        "named_buffers",
        "parameters",
        "buffers",
        "_call_impl",
        "_wrapped_call_impl",
        "__torch_function__",
        "__torch_dispatch__",
        "__getattribute__",
        "__del__",
        "__reduce__",
        "__reduce_ex__",
        "__setstate__",
        "__getstate__",
    }
)
_FRAME_ATTRIBUTES = frozenset(
    {
        "f_back",
        "f_locals",
        "f_globals",
        "f_code",
        "gi_frame",
        "cr_frame",
        "ag_frame",
        "tb_frame",
        "tb_next",
        "co_code",
        "mro",
    }
)


def check_source(skill: Skill, candidate: Candidate) -> str | None:
    """A refusal that says where and why, or None. Never runs or compiles anything."""
    model = candidate.files.get("model_new.py")
    if model is None:
        reason = candidate.omitted.get("model_new.py")
        return _refusal(f"model_new.py {reason}" if reason else "model_new.py is missing; write it with class ModelNew")
    problem = _check_model(model, skill)
    return _refusal(problem) if problem else check_kernels(skill, candidate)


def check_kernels(skill: Skill, candidate: Candidate) -> str | None:
    """The part of check_source that looks at kernels/. CompileService asks it too: the compiler runs on the host, and
    a source could otherwise read the host's files through an include or an assembler directive."""
    kernels = {path: text for path, text in candidate.files.items() if path.startswith("kernels/")}
    if not any(path.endswith(rules_of(skill).needed) for path in kernels):
        reasons = "".join(f"; {path} {reason}" for path, reason in candidate.omitted.items() if path != "model_new.py")
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


def _check_model(source: str, skill: Skill) -> str | None:
    try:
        tree = ast.parse(source)
    except SyntaxError as error:
        return f"model_new.py:{error.lineno or 1}: is not Python: {error.msg}"
    except (ValueError, RecursionError, MemoryError) as error:
        return f"model_new.py: cannot be parsed: {error}"
    classes = [node for node in tree.body if isinstance(node, ast.ClassDef) and node.name == "ModelNew"]
    if not classes:
        return "model_new.py defines no class ModelNew at its top level"
    visitor = _ModelVisitor(skill.extension_module)
    try:
        visitor.visit(tree)
    except RecursionError:
        return "model_new.py: its expressions nest too deeply"
    if visitor.problem is not None:
        return visitor.problem
    if not visitor.uses_extension:
        return (
            f"model_new.py does not import {skill.extension_module}; the work has to be done by kernels of your "
            "own in kernels/"
        )
    return None


class _ModelVisitor(ast.NodeVisitor):
    """Walks model_new.py once and keeps the first problem, with its line."""

    def __init__(self, extension: str) -> None:
        self._extension = extension
        self._allowed = ALLOWED_IMPORTS | {extension}
        self._modules: dict[str, str] = {}
        self.problem: str | None = None
        self.uses_extension = False

    def visit_Import(self, node: ast.Import) -> None:
        for alias in node.names:
            if alias.name not in self._allowed:
                return self._refuse(node, self._import_problem(alias.name))
            self._modules[alias.asname or alias.name.split(".")[0]] = (
                alias.name if alias.asname else alias.name.split(".")[0]
            )
            self.uses_extension |= alias.name == self._extension

    def visit_ImportFrom(self, node: ast.ImportFrom) -> None:
        module = node.module or ""
        if node.level or module not in self._allowed:
            return self._refuse(node, self._import_problem("." * node.level + module))
        self.uses_extension |= module == self._extension
        for alias in node.names:
            if f"{module}.{alias.name}" in self._allowed:
                self._modules[alias.asname or alias.name] = f"{module}.{alias.name}"
            elif module == "torch.nn" and alias.name == "functional":
                self._refuse(node, self._import_problem("torch.nn.functional"))
            elif alias.name == "*" or self._is_refused_member(module, alias.name):
                self._refuse(node, f"imports {alias.name} from {module}; name what you need of it, and not modules")

    def visit_Attribute(self, node: ast.Attribute) -> None:
        module = self._module_of(node.value)
        if module is not None and self._is_refused_member(module, node.attr):
            self._refuse(node, f"uses {module}.{node.attr}; of {module}, only what builds and holds tensors is allowed")
        elif node.attr in _FRAME_ATTRIBUTES or (_is_dunder(node.attr) and node.attr not in _ALLOWED_DUNDERS):
            self._refuse(node, f"uses the attribute {node.attr}; a model needs no interpreter internals")
        elif isinstance(node.ctx, (ast.Store, ast.Del)) and (module is not None or node.attr == "__class__"):
            self._refuse(node, f"assigns to {module or 'an object'}.{node.attr}; patching is tampering")
        self.generic_visit(node)

    def visit_Name(self, node: ast.Name) -> None:
        if node.id in _REFUSED_NAMES:
            self._refuse(node, f"uses {node.id}")

    def visit_Call(self, node: ast.Call) -> None:
        name = node.func.id if isinstance(node.func, ast.Name) else None
        if name in ("setattr", "delattr") and node.args and self._module_of(node.args[0]) is not None:
            self._refuse(node, f"calls {name} on a module; patching a module is tampering")
        if name in ("getattr", "setattr", "delattr", "hasattr") and len(node.args) > 1:
            key = node.args[1]
            module = self._module_of(node.args[0])
            if not isinstance(key, ast.Constant) and module is not None:
                self._refuse(node, f"looks up a computed name in {module}; write the attribute out")
            elif isinstance(key, ast.Constant) and isinstance(key.value, str):
                self.visit_Attribute(ast.copy_location(ast.Attribute(node.args[0], key.value, ast.Load()), node))
        self.generic_visit(node)

    def visit_ClassDef(self, node: ast.ClassDef) -> None:
        for item in node.body:
            names = (
                [item.name]
                if isinstance(item, (ast.FunctionDef, ast.AsyncFunctionDef))
                else [target.id for target in getattr(item, "targets", []) if isinstance(target, ast.Name)]
            )
            refused = next((name for name in names if name in _REFUSED_METHODS), None)
            if refused is not None:
                self._refuse(item, f"class {node.name} overrides {refused}; the judge relies on torch's own")
        self.generic_visit(node)

    def _module_of(self, node: ast.expr) -> str | None:
        """Name of the imported module, or attribute path below one, that an expression spells out."""
        if isinstance(node, ast.Name):
            return self._modules.get(node.id)
        if isinstance(node, ast.Attribute):
            base = self._module_of(node.value)
            return f"{base}.{node.attr}" if base is not None else None
        return None

    def _is_refused_member(self, module: str, name: str) -> bool:
        if module == self._extension:
            return _is_dunder(name)
        if name in _MODULES_IN_MODULES:
            return True
        if module.split(".")[0] != "torch":
            return name.startswith("_")
        return (name.startswith("_") and not _is_dunder(name)) or (module == "torch" and name in _REFUSED_TORCH)

    def _import_problem(self, name: str) -> str:
        allowed = ", ".join(sorted(self._allowed - {"__future__", "collections.abc"}))
        return f"imports {name}; allowed: {allowed}"

    def _refuse(self, node: ast.stmt | ast.expr, problem: str) -> None:
        if self.problem is None:
            self.problem = f"model_new.py:{node.lineno}: {problem}"


def _is_dunder(name: str) -> bool:
    return name.startswith("__") and name.endswith("__")
