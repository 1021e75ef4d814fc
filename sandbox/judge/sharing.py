"""Memory that a result must not share: with the inputs, or with the result of another call."""

from __future__ import annotations

from typing import Any

import numpy as np

from sandbox.judge.arena import span_bytes
from sandbox.judge.candidate_side import CandidateSide
from sandbox.judge.oracle_side import Answer
from sandbox.judge.rejection import RejectedError
from sandbox.judge.values import ITEMSIZE
from sandbox.types import Outcome

Block = tuple[int, int]
"""First byte, and past the last."""


def refuse_shared_outputs(
    candidate: CandidateSide, outputs: list[list[dict[str, Any]]], answers: list[Answer], kept: list[Block]
) -> list[list[Block]]:
    """Results of different calls, and inputs and results, must not share memory; the memory of each call's results.

    `kept`: results of an earlier batch that are still held.
    """
    seen, blocks = list(kept), []
    for output, answer in zip(outputs, answers, strict=True):
        mine = []
        for leaf, aliases in zip(output, answer.aliases, strict=True):
            start = leaf.get("device_address", leaf["address"])
            end = start + span_bytes(leaf, ITEMSIZE[leaf["dtype"]])
            if start == end:
                continue
            if candidate.holds_inputs(start, end):
                if not aliases:
                    raise RejectedError(Outcome.WRONG, "an output is a view of an input; return memory of its own")
                continue
            if any(start < other_end and end > other_start for other_start, other_end in seen):
                raise RejectedError(
                    Outcome.WRONG,
                    "two calls of ModelNew returned the same memory, so the second "
                    "result overwrites the first; allocate the output in every call",
                )
            mine.append((start, end))
        seen += mine
        blocks.append(mine)
    return blocks


def refuse_shared_calls(addresses: np.ndarray, spans: list[int], candidate: CandidateSide, kept: list[Block]) -> None:
    """Results of the calls of one batch must not overlap, nor results that were `kept`. What is within one call may be
    views of one tensor, and views of inputs were judged in the checks."""
    blocks = _merged(kept)
    for row in addresses:
        mine = ((int(address), int(address) + span) for address, span in zip(row, spans, strict=True) if span)
        blocks += _merged([block for block in mine if not candidate.holds_inputs(*block)])
    blocks.sort()
    if any(start < end for (_, end), (start, _) in zip(blocks, blocks[1:], strict=False)):
        raise RejectedError(
            Outcome.WRONG, "timed calls of ModelNew returned the same memory; allocate the output in every call"
        )


def _merged(blocks: list[Block]) -> list[Block]:
    """The same bytes as blocks that do not overlap."""
    merged: list[Block] = []
    for start, end in sorted(blocks):
        if merged and start < merged[-1][1]:
            merged[-1] = merged[-1][0], max(end, merged[-1][1])
        else:
            merged.append((start, end))
    return merged
