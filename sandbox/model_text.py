"""What model_new.py may say: which modules it imports and how far it reaches into them. Read as a syntax tree.

Every module that Python has loaded is a few attributes away from `torch`, the judge's own among them. So a module can
be used in one way only: as the start of a dotted name, whose every part is looked at. It is no value that could be
kept under another name, passed on, or asked for an attribute whose name is computed.
"""

from __future__ import annotations

import ast

from sandbox import model_words as words


def check_model(source: str, extension: str) -> str | None:
    """`model_new.py:line: problem`, or None; `extension` is the name of the module of kernels."""
    try:
        tree = ast.parse(source)
    except SyntaxError as error:
        return f"model_new.py:{error.lineno or 1}: is not Python: {error.msg}"
    except (ValueError, RecursionError, MemoryError) as error:
        return f"model_new.py: cannot be parsed: {error}"
    classes = [node for node in tree.body if isinstance(node, ast.ClassDef) and node.name == "ModelNew"]
    if not classes:
        return "model_new.py defines no class ModelNew at its top level"
    imports = _Imports(extension)
    visitor = _ModelVisitor(imports)
    try:
        imports.visit(tree)  # first, all of them: a name may be used above its import
        visitor.visit(tree)
    except RecursionError:
        return "model_new.py: its expressions nest too deeply"
    if imports.problem or visitor.problem:
        return imports.problem or visitor.problem
    if not imports.uses_extension:
        return f"model_new.py does not import {extension}; the work has to be done by kernels of your own in kernels/"
    return None


class _Visitor(ast.NodeVisitor):
    """Keeps the first problem, with its line."""

    problem: str | None = None

    def refuse(self, node: ast.stmt | ast.expr, problem: str) -> None:
        if self.problem is None:
            self.problem = f"model_new.py:{node.lineno}: {problem}"


class _Imports(_Visitor):
    """Which names stand for modules."""

    def __init__(self, extension: str) -> None:
        self.extension = extension
        self.modules: dict[str, str] = {}
        self.wraps: set[str] = set()
        """Names that stand for functools.wraps."""
        self.uses_extension = False
        self._allowed = words.ALLOWED_IMPORTS | {extension}

    def visit_Import(self, node: ast.Import) -> None:
        for alias in node.names:
            if alias.name not in self._allowed:
                return self.refuse(node, self._problem(alias.name))
            name = alias.name if alias.asname else alias.name.split(".")[0]
            self.modules[alias.asname or name] = name
            self.uses_extension |= alias.name == self.extension

    def visit_ImportFrom(self, node: ast.ImportFrom) -> None:
        module = node.module or ""
        if node.level or module not in self._allowed:
            return self.refuse(node, self._problem("." * node.level + module))
        self.uses_extension |= module == self.extension
        for alias in node.names:
            if f"{module}.{alias.name}" in self._allowed:
                self.modules[alias.asname or alias.name] = f"{module}.{alias.name}"
            elif module == "torch.nn" and alias.name == "functional":
                self.refuse(node, self._problem("torch.nn.functional"))
            elif alias.name == "*" or self.is_refused(module, alias.name) or self.is_module(module, alias.name):
                self.refuse(node, f"imports {alias.name} from {module}; name what you need of it, and not modules")
            elif f"{module}.{alias.name}" == words.WRAPS:
                self.wraps.add(alias.asname or alias.name)

    def is_refused(self, module: str, name: str) -> bool:
        """Whether the member `name` of a module, or of something below one, is out of bounds."""
        return _is_dunder(name) if module == self.extension else is_refused_member(module, name)

    def is_module(self, module: str, name: str) -> bool:
        if module.split(".")[0] != "torch":
            return False
        return name in words.MODULES_OF_TORCH or (module != "torch" and name in words.MODULES_OF_NN)

    def _problem(self, name: str) -> str:
        allowed = ", ".join(sorted(self._allowed - {"__future__", "collections.abc"}))
        return f"imports {name}; allowed: {allowed}"


class _ModelVisitor(_Visitor):
    """Everything but the imports."""

    def __init__(self, imports: _Imports) -> None:
        self._imports = imports

    def visit_Attribute(self, node: ast.Attribute) -> None:
        module = self._module_of(node.value)
        if module is not None and self._imports.is_module(module, node.attr):
            self._refuse_value(node, f"{module}.{node.attr}")
        self._check_attribute(node)

    def _check_attribute(self, node: ast.Attribute) -> None:
        module = self._module_of(node.value)
        if module is not None and self._imports.is_refused(module, node.attr):
            self.refuse(node, f"uses {module}.{node.attr}; of {module}, {_what_is_allowed(module)} is allowed")
        elif is_internal(node.attr):
            self.refuse(node, f"uses the attribute {node.attr}; a model needs no interpreter internals")
        elif module == "functools" and node.attr == "wraps":
            self._refuse_wraps(node)
        elif isinstance(node.ctx, (ast.Store, ast.Del)) and (module is not None or node.attr == "__class__"):
            self.refuse(node, f"assigns to {module or 'an object'}.{node.attr}; patching is tampering")
        self._visit_base(node.value)

    def _visit_base(self, node: ast.expr) -> None:
        """What stands before a dot: here, and only here, it may be a module."""
        if isinstance(node, ast.Attribute):
            self._check_attribute(node)
        elif not (isinstance(node, ast.Name) and node.id in self._imports.modules):
            self.visit(node)

    def visit_Name(self, node: ast.Name) -> None:
        module = self._imports.modules.get(node.id)
        if node.id in words.REFUSED_NAMES or (_is_dunder(node.id) and node.id not in words.DUNDER_NAMES):
            self.refuse(node, f"uses {node.id}")
        elif node.id in self._imports.wraps and isinstance(node.ctx, ast.Load):
            self._refuse_wraps(node)
        elif node.id in words.LOOKUPS or node.id == "type":
            self.refuse(node, f"uses {node.id} as a value; call it where you need it")
        elif module is not None and module != self._imports.extension and isinstance(node.ctx, ast.Load):
            self._refuse_value(node, module)

    def visit_Call(self, node: ast.Call) -> None:
        name = node.func.id if isinstance(node.func, ast.Name) else None
        if name == "type" and len(node.args) == 1 and not node.keywords:
            self.visit(node.args[0])
        elif name in words.LOOKUPS and len(node.args) > 1:
            self._check_lookup(node, name)
        elif self._is_wraps(node.func) and len(node.args) == 1 and not node.keywords:
            self.visit(node.args[0])
        else:
            self.generic_visit(node)

    def _check_lookup(self, node: ast.Call, name: str) -> None:
        """getattr(object, "name") is object.name; a computed name only ever of `self`, and looked at when it is used
        (sandbox.judge.lookups)."""
        target, key, *rest = node.args
        if isinstance(key, ast.Constant) and isinstance(key.value, str):
            context = ast.Load() if name in ("getattr", "hasattr") else ast.Store()
            self.visit_Attribute(ast.copy_location(ast.Attribute(target, key.value, context), node))
        elif not (isinstance(target, ast.Name) and target.id == "self" and "self" not in self._imports.modules):
            self.refuse(node, f"calls {name} with a computed name; write the attribute out")
        else:
            self.visit(key)
        for argument in [*rest, *(keyword.value for keyword in node.keywords)]:
            self.visit(argument)

    def visit_MatchClass(self, node: ast.MatchClass) -> None:
        """`case Kind(name=part)` asks for attributes, and `case Kind(part)` for those that Kind names."""
        if node.patterns or node.kwd_attrs:
            self.refuse(node.cls, "matches attributes by a class pattern; use isinstance, and write attributes out")
        self.generic_visit(node)

    def visit_ClassDef(self, node: ast.ClassDef) -> None:
        for item in node.body:
            refused = next((name for name in _defined(item) if name in words.REFUSED_METHODS), None)
            if refused is not None:
                self.refuse(item, f"class {node.name} overrides {refused}; the judge relies on torch's own")
        self.generic_visit(node)

    def _module_of(self, node: ast.expr) -> str | None:
        """Name of the imported module, or attribute path below one, that an expression spells out."""
        if isinstance(node, ast.Name):
            return self._imports.modules.get(node.id)
        if isinstance(node, ast.Attribute):
            base = self._module_of(node.value)
            return f"{base}.{node.attr}" if base is not None else None
        return None

    def _is_wraps(self, node: ast.expr) -> bool:
        if isinstance(node, ast.Name):
            return node.id in self._imports.wraps
        return isinstance(node, ast.Attribute) and f"{self._module_of(node.value)}.{node.attr}" == words.WRAPS

    def _refuse_wraps(self, node: ast.expr) -> None:
        self.refuse(node, "uses functools.wraps with more than the function, or as a value; write @functools.wraps(f)")

    def _refuse_value(self, node: ast.expr, module: str) -> None:
        self.refuse(node, f"uses the module {module} as a value; write out what you need of it, as in {module}.name")


def is_refused_member(module: str, name: str) -> bool:
    """Whether `name` of a module that may be imported, or of something below one, is out of bounds."""
    root, last = module.split(".")[0], module.split(".")[-1]
    if name in words.FOREIGN_MODULES or name in words.REFUSED_MEMBERS.get(last, ()):
        return True
    if last in words.ALLOWED_MEMBERS and name not in words.ALLOWED_MEMBERS[last]:
        return True
    if root != "torch":
        return name.startswith("_")
    return name == "torch" or (name.startswith("_") and not _is_dunder(name))


def _what_is_allowed(module: str) -> str:
    members = words.ALLOWED_MEMBERS.get(module.split(".")[-1])
    return "only what builds and holds tensors" if members is None else f"only {', '.join(sorted(members))}"


def is_internal(attribute: str) -> bool:
    """Whether an attribute of this name leads into the interpreter, or past what the judge records."""
    return attribute in words.INTERNALS or (_is_dunder(attribute) and attribute not in words.ALLOWED_DUNDERS)


def _defined(item: ast.stmt) -> list[str]:
    """Names that a statement of a class body gives to the class."""
    if isinstance(item, (ast.FunctionDef, ast.AsyncFunctionDef)):
        return [item.name]
    targets = [item.target] if isinstance(item, ast.AnnAssign) else getattr(item, "targets", [])
    return [target.id for target in targets if isinstance(target, ast.Name)]


def _is_dunder(name: str) -> bool:
    return name.startswith("__") and name.endswith("__")
