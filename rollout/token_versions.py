"""Which weights sampled each token of a reply: reported by vLLM 0.32, counted here for 0.26, which says nothing of it.

Counting is exact because weights change only while the engine is paused. The reply to the pause comes from the engine's
process on the same ordered channel as the tokens, after the last of them; so once that channel's queue is read empty,
the tokens that a running reply has are those of the old weights, and every later one is of the new.
"""

from __future__ import annotations

import asyncio
from typing import Any, Protocol

import numpy as np

_ENDING_TURNS = 4  # of the event loop, in which a reply that is complete wakes its waiter and leaves the count


class TokenVersions(Protocol):
    """One engine's record of versions. `version` labels what is sampled from now on."""

    async def start(self, version: int) -> None: ...

    def begin(self, request_id: str) -> None: ...

    def end(self, request_id: str) -> None: ...

    async def finish_update(self, version: int) -> None:
        """Ends the update in vLLM's worker; the engine is paused, and all tokens sampled later are of `version`."""
        ...

    def of(self, request_id: str, sample: Any) -> np.ndarray:
        """[T] int32 of a finished reply, before its `end`; -1 where a token's version is not known."""
        ...


def token_versions(engine: Any, *, max_num_seqs: int) -> TokenVersions:
    """For an AsyncLLM of either release."""
    if hasattr(engine, "update_weight_version"):
        return ReportedVersions(engine)
    return CountedVersions(engine, max_num_seqs=max_num_seqs)


class ReportedVersions:
    """vLLM labels its outputs itself and hands back spans of tokens."""

    def __init__(self, engine: Any) -> None:
        self._engine = engine

    async def start(self, version: int) -> None:
        await self._engine.update_weight_version(str(version))

    def begin(self, request_id: str) -> None:
        del request_id

    def end(self, request_id: str) -> None:
        del request_id

    async def finish_update(self, version: int) -> None:
        await self._engine.finish_weight_update(weight_version=str(version))

    def of(self, request_id: str, sample: Any) -> np.ndarray:
        del request_id
        versions = np.full(len(sample.token_ids), -1, np.int32)
        for span in sample.weight_versions or []:
            versions[span.start : span.end] = int(span.version)
        return versions


class CountedVersions:
    """How many tokens each running reply had at every change of the weights."""

    def __init__(self, engine: Any, *, max_num_seqs: int) -> None:
        self._engine, self._max_num_seqs = engine, max_num_seqs
        self._version = -1
        self._starts: dict[str, list[tuple[int, int]]] = {}
        """For each reply under way (first token, version) of its spans, in order."""

    async def start(self, version: int) -> None:
        self._version = version

    def begin(self, request_id: str) -> None:
        self._starts[request_id] = [(0, self._version)]

    def end(self, request_id: str) -> None:
        self._starts.pop(request_id, None)

    async def finish_update(self, version: int) -> None:
        await self._engine.finish_weight_update()
        await self._read_all()
        states = self._engine.output_processor.request_states.values()
        counts = {state.external_req_id: state.detokenizer.num_output_tokens() for state in states}
        for request_id, spans in self._starts.items():
            # One that vLLM does not know has not reached it yet: those that ended have left in _read_all.
            spans.append((counts.get(request_id, 0), version))
        self._version = version

    def of(self, request_id: str, sample: Any) -> np.ndarray:
        versions = np.full(len(sample.token_ids), -1, np.int32)
        for first, version in self._starts[request_id]:
            versions[first:] = version
        return versions

    async def _read_all(self) -> None:
        """Until every output that came before the pause's reply is counted, and replies that it completed are gone.

        vLLM's reader takes an output and handles it in chunks of at least one reply, letting others run in between:
        with an empty queue, so many turns of the event loop see it through.
        """
        while not self._engine.engine_core.outputs_queue.empty():
            await asyncio.sleep(0)
        for _ in range(self._max_num_seqs + _ENDING_TURNS):
            await asyncio.sleep(0)
