"""Which family of operators a task belongs to, read from its code: for tables by family.

A task of several operators belongs to the family that costs most: a convolution with a ReLU behind it is a convolution.
"""

from __future__ import annotations

import ast
import re

FAMILIES: dict[str, tuple[str, ...]] = {
    "attention": ("attention", "multihead", "transformer"),
    "recurrent": ("lstm", "gru", "rnn"),
    "convolution": ("conv",),
    "matrix product": ("matmul", "linear", "bmm", "mm", "einsum", "addmm", "baddbmm", "bilinear", "tensordot", "dot"),
    "normalization": ("norm",),
    "pooling": ("pool",),
    "loss": ("loss", "cross_entropy", "kl_div", "cosine_similarity"),
    "scan": ("cumsum", "cumprod", "cummax", "cummin"),
    "softmax": ("softmax", "logsumexp"),
    "reduction": ("sum", "mean", "max", "min", "argmax", "argmin", "prod", "amax", "amin", "var", "std", "any", "all"),
    "activation": ("relu", "gelu", "elu", "selu", "silu", "swish", "mish", "sigmoid", "tanh", "softplus", "softsign",
                   "hardtanh", "hardsigmoid", "hardswish", "leaky_relu", "leakyrelu", "clamp"),
}  # fmt: skip
"""Family -> what its operators are called, dearest first. Short names have to match whole, longer ones as a part."""
OTHER = "other"
_WHOLE = 4
"""Names of up to so many letters are matched whole: `mm` is not in `comma`."""
_EXCEPT = {"conv": {"convert"}, "norm": {"normal", "normal_"}}


def family_of(code: str) -> str:
    """The dearest family among the calls in class Model; OTHER where none is known, or the code is not Python."""
    names = _called_names(code)
    for family, patterns in FAMILIES.items():
        if any(_matches(name, pattern) for name in names for pattern in patterns):
            return family
    return OTHER


def _called_names(code: str) -> set[str]:
    """Last parts of the names that class Model calls, in small letters; `@` counts as matmul."""
    try:
        tree = ast.parse(code)
    except (SyntaxError, ValueError):
        return set()
    models = [node for node in tree.body if isinstance(node, ast.ClassDef) and node.name == "Model"]
    names = set()
    for node in (inner for model in models for inner in ast.walk(model)):
        if isinstance(node, ast.BinOp) and isinstance(node.op, ast.MatMult):
            names.add("matmul")
        elif isinstance(node, ast.Call):
            function = node.func
            name = function.attr if isinstance(function, ast.Attribute) else getattr(function, "id", "")
            names.add(name.lower())
    return names


def _matches(name: str, pattern: str) -> bool:
    if name in _EXCEPT.get(pattern, ()):
        return False
    if len(pattern) <= _WHOLE and pattern not in ("conv", "norm", "pool", "loss", "lstm"):
        return bool(re.fullmatch(rf"{pattern}(cell)?_?\d?d?", name))
    return pattern in name
