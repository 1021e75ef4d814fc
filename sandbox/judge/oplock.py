"""Takes torch's computing operators away from a candidate's process, for the time in which ModelNew.forward runs.

A record of operators (observe.OperatorRecord) slows every call down, so it cannot be on while the clock runs, and a
candidate may notice when it is on. Kernels that refuse cost nothing until they are called, in whichever thread, from
Python or from C++.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import torch

from sandbox.judge.ownwork import ALLOWED_OPERATORS
from sandbox.symbol_lists import ALLOWED_ATEN

_NAMESPACES = ("aten", "mkldnn")
_DISPATCH_KEY = "CPU"


class ForeignOperatorError(Exception):
    """ModelNew called an operator of torch that computes."""


class OperatorLock:
    """Replaces the CPU kernels of all operators that are not for allocation, views and copies; for good."""

    def __init__(self) -> None:
        self._libraries = {name: torch.library.Library(name, "IMPL") for name in _NAMESPACES}

    def close(self) -> None:
        """From here on the operators raise ForeignOperatorError."""
        allowed = ALLOWED_OPERATORS | ALLOWED_ATEN
        with warnings.catch_warnings():  # torch says so where kernels are replaced
            warnings.simplefilter("ignore")
            for name in torch._C._dispatch_get_registrations_for_dispatch_key(_DISPATCH_KEY):
                namespace, _, operator = name.partition("::")
                if namespace in self._libraries and operator.partition(".")[0] not in allowed:
                    self._libraries[namespace].m.impl(operator, _DISPATCH_KEY, _refusing(operator), False)  # type: ignore[union-attr]


def _refusing(operator: str) -> Callable[..., Any]:
    def refuse(*args: Any, **kwargs: Any) -> Any:
        raise ForeignOperatorError(f"ModelNew ran torch's own operator aten.{operator}")

    return refuse
