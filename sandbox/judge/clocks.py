"""What a GPU's events say, held against the supervisor's clock and against what is the same in either process.

Now and then one process's calls take four times as long, from the first round of a judgement to its last (seen on an
H200). What is always the same tells: the wipe of the cache between two calls takes longer where the device serves a
process slowly or its work comes late, and launching calls of nothing does where its host is slow.
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
SLOW = {"wipe": 1.5, "launch": 2.0}
"""What is the same takes no longer than so many times what it takes elsewhere."""


@dataclass(frozen=True, slots=True)
class ClocksReport:
    """For Judgement.details."""

    outside_ms: dict[str, dict[str, float]]
    """Times by the supervisor's clock."""
    same_ms: dict[str, dict[str, float]]
    """Of candidate and eager, "wipe" (median; 0 where batches are of one call) and "launch" (the shortest)."""

    @property
    def doubt(self) -> str:
        """Why the candidate may have been read too slow; "" where nothing says so."""
        return slower(self.same_ms["candidate"], self.same_ms["eager"])

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
        same_ms={"candidate": _same(candidate), "eager": _same(eager)},
    )


def slower(same_ms: dict[str, float], usual_ms: dict[str, float]) -> str:
    """What took longer than it usually does, in words; "" where nothing did."""
    for name, limit in SLOW.items():
        usual = usual_ms.get(name, 0.0)
        if usual and same_ms[name] > limit * usual:
            return f"one {name} took {same_ms[name]:.4g} ms in this process, {usual:.4g} ms in another"
    return ""


def _same(contender: Contender) -> dict[str, float]:
    return {
        "wipe": statistics.median(contender.wipes_ms) if contender.wipes_ms else 0.0,
        "launch": min(contender.launches_ms, default=0.0),
    }
