"""The own-work rule: what a candidate's records (observe.py) may show, judged in the supervisor."""

from __future__ import annotations

from typing import Any

from sandbox.judge.rejection import RejectedError
from sandbox.types import Outcome

ALLOWED_OPERATORS = frozenset(
    {
        "empty",
        "empty_like",
        "empty_strided",
        "new_empty",
        "new_empty_strided",
        "zeros",
        "zeros_like",
        "new_zeros",
        "full",
        "full_like",
        "new_full",
        "ones",
        "ones_like",
        "new_ones",
        "scalar_tensor",
        "detach",
        "alias",
        "view",
        "_unsafe_view",
        "view_as",
        "reshape",
        "_reshape_alias",
        "permute",
        "transpose",
        "t",
        "expand",
        "as_strided",
        "slice",
        "select",
        "unsqueeze",
        "squeeze",
        "split",
        "split_with_sizes",
        "chunk",
        "unbind",
        "narrow",
        "unfold",
        "diagonal",
        "movedim",
        "swapaxes",
        "flatten",
        "unflatten",
        "lift_fresh",
        "real",
        "imag",
        "view_as_real",
        "view_as_complex",
        "clone",
        "copy_",
        "_to_copy",
        "contiguous",
        "fill_",
        "zero_",
        "resize_",
        "set_",
        "_local_scalar_dense",
        "is_same_size",
        "sym_size",
        "sym_stride",
        "sym_numel",
        "sym_storage_offset",
    }
)
"""aten operators that allocate, describe, view or copy; everything else is computation and belongs into a kernel."""


def refuse_observed(reply: dict[str, Any]) -> None:
    """Raises RejectedError (refused) if a reply of the candidate's process shows torch's work or tampering."""
    tampering, operators = reply.get("tampering"), reply.get("operators")
    if isinstance(tampering, list) and tampering:
        raise RejectedError(
            Outcome.REFUSED,
            "not allowed while a candidate is loaded or runs: "
            f"{'; '.join(str(event)[:200] for event in tampering[:5])}. A candidate only computes: it "
            "writes no files, starts no processes, and does not look at frames, memory or sockets",
        )
    foreign = foreign_operators(operators) if isinstance(operators, dict) else []
    if foreign:
        raise RejectedError(
            Outcome.REFUSED,
            f"ModelNew ran torch's own operators: {', '.join(foreign[:8])}. Torch may "
            "only allocate, view and copy tensors; compute in kernels/",
        )


def foreign_operators(counts: dict[str, Any]) -> list[str]:
    """The recorded operators that are computation, most frequent first: ["aten.softmax x3"]."""
    foreign = []
    for name, count in counts.items():
        namespace, _, operator = str(name).partition(".")
        if namespace == "aten" and operator.partition(".")[0] in ALLOWED_OPERATORS:
            continue
        foreign.append(f"{str(name).removesuffix('.default')} x{count}")
    return foreign
