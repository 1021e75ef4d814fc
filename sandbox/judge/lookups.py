"""getattr and its like for model_new.py: a name that was computed is looked at when it is used.

Text can be checked before it runs (sandbox.model_text), a name that only exists at run time cannot: any object can be
called self. So the module gets these builtins in place of Python's.
"""

from __future__ import annotations

import builtins
import types
from collections.abc import Callable
from typing import Any

from sandbox.model_text import is_internal, is_refused_member
from sandbox.model_words import ALLOWED_IMPORTS

_LOOKUPS = ("getattr", "setattr", "hasattr", "delattr")
_LOOKS_ONLY = ("getattr", "hasattr")


def guarded_builtins(tell: Callable[[str], None]) -> dict[str, Any]:
    """Python's builtins, whose lookups by name refuse interpreter internals, and of modules what their text may not
    say; `tell` hears of attempts."""
    return vars(builtins) | {name: _guarded(name, getattr(builtins, name), tell) for name in _LOOKUPS}


def _guarded(called: str, function: Callable[..., Any], tell: Callable[[str], None]) -> Callable[..., Any]:
    def lookup(target: Any, name: str, *rest: Any) -> Any:
        if type(name) is not str or is_internal(name) or not _may_ask(called, target, name):
            tell(f"called {called} for {str(name)[:80]}")
            raise AttributeError(
                f"{called} of {str(name)[:80]!r}: a model needs no modules and no interpreter internals"
            )
        return function(target, name, *rest)

    return lookup


def _may_ask(called: str, target: Any, name: str) -> bool:
    """Of a module only members that may be named in the text, and never another module."""
    if not isinstance(target, types.ModuleType):
        return True
    known = target.__name__.split(".")[0] in ALLOWED_IMPORTS and not is_refused_member(target.__name__, name)
    return called in _LOOKS_ONLY and known and not isinstance(getattr(target, name, None), types.ModuleType)
