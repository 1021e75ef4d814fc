"""What a task's code does while it runs: operators, randomness, text it prints and files it touches.

These records live in the task's own process. They explain honest faults; isolation does not depend on them.
"""

from __future__ import annotations

import contextlib
import io
import os
import sys
import time
import warnings
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from torch.overrides import TorchFunctionMode, resolve_name
from torch.utils._python_dispatch import TorchDispatchMode

from sandbox.judge.observe import PROCESS_EVENTS, opens_for_writing

MAX_EVENTS = 20
MAX_OPERATORS = 200
MAX_PRINTED = 2000
_CONTAINERS = ("Sequential", "ModuleList", "ModuleDict", "ParameterList", "ParameterDict")
FREE_CALLS = frozenset(
    name
    for line in (
        "view view_as reshape reshape_as permute transpose t T mT H mH swapaxes swapdims movedim moveaxis contiguous",
        "flatten unflatten squeeze unsqueeze expand expand_as broadcast_to chunk split tensor_split unbind narrow",
        "select diagonal detach item tolist data size shape dim ndim stride numel nelement storage_offset element_size",
        "data_ptr is_contiguous is_floating_point is_complex is_cuda is_sparse is_quantized requires_grad",
        "requires_grad_ grad grad_fn names dtype device layout get_device to float double half bfloat16 long int bool",
        "type type_as",
        "zeros ones empty full arange linspace eye zeros_like ones_like empty_like full_like new_zeros new_ones",
        "new_empty new_full tensor as_tensor __get__ __getitem__ __len__ __iter__ __format__ __repr__ __bool__",
    )
    for name in line.split()
)
"""Calls that compute nothing: shapes, views, types, and memory that is made with a fixed content."""


def tensor_methods() -> frozenset[str]:
    """Public methods of torch.Tensor."""
    return frozenset(name for name in dir(torch.Tensor) if not name.startswith("_"))


class OperatorCalls(TorchFunctionMode):
    """The operators that a forward pass consists of, in order, as torch runs them.

    An operator is the outermost library module (torch.nn or transformers) that is called, or a torch function called
    outside of any; what a library module calls inside is part of it. Views and constants do not count.
    """

    def __init__(self) -> None:
        super().__init__()
        self.names: list[str] = []
        self._depth = 0

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name = (resolve_name(func) or getattr(func, "__name__", "?")).rpartition(".")
        if self._depth == 0 and not ({name[2], name[0].rpartition(".")[2]} & FREE_CALLS):
            self._add(name[2].strip("_"))
        return func(*args, **(kwargs or {}))

    @contextlib.contextmanager
    def watching(self) -> Iterator[OperatorCalls]:
        from torch.nn.modules import module

        hooks = [
            module.register_module_forward_pre_hook(self._enter),
            module.register_module_forward_hook(self._leave, always_call=True),
        ]
        try:
            with self:
                yield self
        finally:
            for hook in hooks:
                hook.remove()

    def _enter(self, called: torch.nn.Module, _: Any) -> None:
        if is_library_module(called):
            if self._depth == 0 and type(called).__name__ != "Identity":
                self._add(type(called).__name__)
            self._depth += 1

    def _leave(self, called: torch.nn.Module, *_: Any) -> None:
        if is_library_module(called):
            self._depth -= 1

    def _add(self, name: str) -> None:
        if len(self.names) < MAX_OPERATORS:
            self.names.append(name)


def is_library_module(called: torch.nn.Module) -> bool:
    """True for an operator of torch.nn or transformers; containers and the task's own classes are none."""
    kind = type(called)
    return kind.__module__.startswith(("torch.nn.", "transformers.")) and kind.__name__ not in _CONTAINERS


class DispatchRecord(TorchDispatchMode):
    """Counts aten operators, and keeps those that draw random numbers with the arguments they were given."""

    def __init__(self) -> None:
        super().__init__()
        self.counts: Counter[str] = Counter()
        self.random: list[str] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.counts[str(func)] += 1
        is_random = torch.Tag.nondeterministic_seeded in func.tags and not _draws_nothing(func, args, kwargs or {})
        if is_random and len(self.random) < MAX_EVENTS:
            self.random.append(str(func))
        return func(*args, **(kwargs or {}))


def _draws_nothing(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
    """Attention without dropout and rrelu in eval mode are tagged as random, and are not."""
    names = [argument.name for argument in func._schema.arguments]
    defaults = {argument.name: argument.default_value for argument in func._schema.arguments}
    given = defaults | dict(zip(names, args, strict=False)) | kwargs
    if given.get("dropout_p", None) == 0.0 or given.get("training", None) is False or given.get("train", None) is False:
        return True
    return "fused_sdp_choice" in str(func)


class OutsideRecord:
    """Text that the task's code prints, and files, processes and sockets it asks for, while `watching`."""

    def __init__(self) -> None:
        self.touched: list[str] = []
        self.slept = False
        self._printed = io.StringIO()
        self._watching = False
        self._own = tuple(
            str(Path(folder).resolve())
            for folder in {sys.prefix, sys.base_prefix, Path(torch.__file__).parents[1], Path(__file__).parents[2]}
        )
        sys.addaudithook(self._hook)
        sleep = time.sleep  # Python 3.11 has no audit event for it

        def recorded_sleep(seconds: float) -> None:
            self.slept = self.slept or self._watching and _is_asked_by_task()
            sleep(seconds)

        time.sleep = recorded_sleep

    @property
    def printed(self) -> str:
        return self._printed.getvalue()[:MAX_PRINTED]

    @contextlib.contextmanager
    def watching(self) -> Iterator[None]:
        """Warnings are no prints: libraries have them too."""
        with (
            warnings.catch_warnings(),
            contextlib.redirect_stdout(self._printed),
            contextlib.redirect_stderr(self._printed),
        ):
            warnings.simplefilter("ignore")
            self._watching = True
            try:
                yield
            finally:
                self._watching = False

    def _hook(self, event: str, arguments: tuple[Any, ...]) -> None:
        if not self._watching or len(self.touched) >= MAX_EVENTS:
            return
        self._watching = False
        try:
            text = self._describe(event, arguments)
            if text is not None and _is_asked_by_task():
                self.touched.append(text)
        finally:
            self._watching = True

    def _describe(self, event: str, arguments: tuple[Any, ...]) -> str | None:
        if event == "open":
            path, mode, flags = arguments
            if isinstance(path, int) or self._is_library(str(path)):
                return None
            return f"opened {path!s} for {'writing' if opens_for_writing(mode, flags) else 'reading'}"
        if event.startswith(PROCESS_EVENTS) or event.startswith("socket."):
            return f"called {event}"
        if event in ("os.listdir", "os.scandir") and not self._is_library(str(arguments[0])):
            return f"listed {arguments[0]}"
        return None

    def _is_library(self, path: str) -> bool:
        """Imports read Python files, torch asks the system about its processors, and `inspect` looks for our code."""
        libraries = (*self._own, "/proc/", "/sys/", "/dev/")
        return path.startswith("<") or path == "model.py" or os.path.abspath(path).startswith(libraries)


def _is_asked_by_task() -> bool:
    """Whether the task's own code made the call, also through a library, and not in the course of an import.

    Imports, and what libraries look up when they are first used, read many files.
    """
    frame = sys._getframe(2)
    while frame is not None:
        name = frame.f_code.co_filename
        if name == "model.py":
            return True
        if "importlib" in name:
            return False
        frame = frame.f_back
    return False
