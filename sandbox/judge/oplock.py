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

_DISPATCH_KEYS = ("CPU", "SparseCPU", "SparseCsrCPU", "MkldnnCPU", "QuantizedCPU", "NestedTensorCPU")
"""Where tensors in the host's memory are computed with, in whichever layout."""


class ForeignOperatorError(Exception):
    """ModelNew called an operator of torch that computes."""


class OperatorLock:
    """Replaces the host's kernels of all operators that are not for allocation, views and copies; for good."""

    def __init__(self) -> None:
        self._libraries: dict[str, torch.library.Library] = {}

    def close(self) -> None:
        """From here on the operators raise ForeignOperatorError."""
        allowed = ALLOWED_OPERATORS | ALLOWED_ATEN
        with warnings.catch_warnings():  # torch says so where kernels are replaced
            warnings.simplefilter("ignore")
            for key in _DISPATCH_KEYS:
                for name in torch._C._dispatch_get_registrations_for_dispatch_key(key):
                    namespace, _, operator = name.partition("::")
                    if namespace != "aten" or operator.partition(".")[0] not in allowed:
                        self._replace(namespace, operator, key)

    def _replace(self, namespace: str, operator: str, key: str) -> None:
        if namespace not in self._libraries:
            self._libraries[namespace] = torch.library.Library(namespace, "IMPL")
        refuse = _refusing(f"{namespace}.{operator}")
        self._libraries[namespace].m.impl(operator, key, refuse, False)  # type: ignore[union-attr]


def _refusing(operator: str) -> Callable[..., Any]:
    def refuse(*args: Any, **kwargs: Any) -> Any:
        raise ForeignOperatorError(f"ModelNew ran torch's own operator {operator}")

    return refuse
