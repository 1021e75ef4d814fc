"""What a GPU's events say, held against the supervisor's clock and against a piece of work that is always the same.

Between two calls of a batch the cache is wiped, which takes the same time in either process. Where it takes longer in
one of them, that process launches its work late, or the device serves it slowly, and so were its calls: seen on an
H200, four times as long, from the first round of a judgement to its last.
"""

from __future__ import annotations

import statistics
from dataclasses import asdict, dataclass
from typing import Any

from sandbox.judge.rejection import RejectedError
from sandbox.judge.timing import Contender
from sandbox.types import DeviceError, Outcome

_AGREE, _SLACK_MS = 0.8, 0.03
"""Events and the supervisor's clock may differ by so much, and by what a round trip varies."""
SLOW_WIPE = 1.5
"""A wipe takes no longer than so many times what it takes elsewhere."""


@dataclass(frozen=True, slots=True)
class ClocksReport:
    """For Judgement.details."""

    outside_ms: dict[str, dict[str, float]]
    """Times by the supervisor's clock."""
    wipe_ms: dict[str, float]
    """Medians, of candidate and eager; 0 where batches are of one call."""

    @property
    def doubt(self) -> str:
        """Why the candidate may have been read too slow; "" where nothing says so."""
        mine, eager = self.wipe_ms["candidate"], self.wipe_ms["eager"]
        if not eager or mine <= SLOW_WIPE * eager:
            return ""
        return f"a wipe of the cache took {mine:.4g} ms in the candidate's process, {eager:.4g} ms in eager's"

    def to_json(self) -> dict[str, Any]:
        return asdict(self)


def compare_clocks(candidate: Contender, eager: Contender) -> ClocksReport:
    """Raises DeviceError where they cannot both be right, RejectedError where a candidate's calls take longer than
    torch's current stream knows of."""
    for contender in (eager, candidate):
        outside, device = contender.outside.median_ms, contender.series.median_ms
        if outside < _AGREE * device - _SLACK_MS:
            raise DeviceError(f"the supervisor's clock says {outside:.4g} ms a call, the device's {device:.4g} ms")
    # the fastest round: a busy host makes some slow, work that events do not see makes all slow
    outside, device = min(candidate.outside.values_ms), candidate.series.median_ms
    if outside > device / _AGREE + _SLACK_MS:
        raise RejectedError(
            Outcome.REFUSED,
            f"a call takes {outside:.4g} ms until the device is idle, and {device:.4g} ms on torch's current "
            "stream; enqueue all work on that stream",
            device_trouble=True,
        )
    return ClocksReport(
        outside_ms={"candidate": candidate.outside.to_json(), "eager": eager.outside.to_json()},
        wipe_ms={"candidate": _middle(candidate.wipes_ms), "eager": _middle(eager.wipes_ms)},
    )


def _middle(values: list[float]) -> float:
    return statistics.median(values) if values else 0.0
