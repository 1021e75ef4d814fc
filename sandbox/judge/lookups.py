"""getattr and its like for model_new.py: a name that was computed is looked at when it is used.

Text can be checked before it runs (sandbox.model_text), a name that only exists at run time cannot: any object can be
called self. So the module gets these builtins in place of Python's.
"""

from __future__ import annotations

import builtins
import types
from collections.abc import Callable
from typing import Any

from sandbox.model_text import is_internal

_LOOKUPS = ("getattr", "setattr", "hasattr", "delattr")


def guarded_builtins(tell: Callable[[str], None]) -> dict[str, Any]:
    """Python's builtins, whose lookups by name refuse modules and interpreter internals; `tell` hears of attempts."""
    return vars(builtins) | {name: _guarded(name, getattr(builtins, name), tell) for name in _LOOKUPS}


def _guarded(called: str, function: Callable[..., Any], tell: Callable[[str], None]) -> Callable[..., Any]:
    def lookup(target: Any, name: str, *rest: Any) -> Any:
        if type(name) is not str or is_internal(name) or type(target) is types.ModuleType:
            tell(f"called {called} for {str(name)[:80]}")
            raise AttributeError(
                f"{called} of {str(name)[:80]!r}: a model needs no modules and no interpreter internals"
            )
        return function(target, name, *rest)

    return lookup
