"""Judgements side by side on one GPU: a neighbour that hogs, breaks or never ends changes nobody's verdict."""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import gpu_cases as cases
import pytest

from sandbox.judge.device import DeviceJudge
from sandbox.tasks import TaskError
from sandbox.types import Candidate, DeviceError, Judgement, Outcome

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(os.geteuid() != 0, reason="candidates need users of their own"),
]
CHAIN = cases.CHAIN
HOG = """
if not self.held:
    free_bytes, _ = torch.cuda.mem_get_info()
    self.held.append(torch.empty(int(0.99 * free_bytes), dtype=torch.uint8, device=x.device))
y = torch.empty_like(x)
k.chain(x, y, x.numel(), self.scale)
return y
"""
NEIGHBOURS = {
    "takes all memory": CHAIN.candidate(forward=HOG, new="self.held = []"),
    "never ends": CHAIN.candidate(
        kernel=CHAIN.kernel.replace(
            "if (i < n) y[i] =", "for (volatile bool on = true; on && n;) {}\n  if (i < n) y[i] ="
        )
    ),
    "writes out of bounds": CHAIN.candidate(
        kernel=CHAIN.kernel.replace("if (i < n) y[i] =", "if (i < n) y[i + (1ll << 40)] =")
    ),
}


@pytest.fixture(scope="module")
def three(make_judge: Callable[..., DeviceJudge]) -> DeviceJudge:
    return make_judge(jobs_per_device=3, timeout_s=6)


def test_three_at_once_get_the_verdicts_they_get_alone_and_a_gpu_at_rest(judge, three):
    three.baseline(CHAIN.task)
    with ThreadPoolExecutor(6) as threads:
        began = time.monotonic()
        right = [threads.submit(judge, CHAIN.task, CHAIN.good, timed=True, on=three) for _ in range(3)]
        wrong = [threads.submit(judge, CHAIN.task, CHAIN.bad, timed=True, on=three) for _ in range(3)]
        judgements = [each.result() for each in right]
        elapsed = time.monotonic() - began
        assert all(each.result().outcome is Outcome.WRONG for each in wrong)
    assert all(each.accepted and each.details["turn"]["still"] for each in judgements)
    assert sum(each.details["phases"]["total_s"] for each in judgements) > elapsed
    times = [each.details["candidate"]["median_ms"] for each in judgements]
    assert max(times) < 1.1 * min(times), times


@pytest.mark.parametrize("name", NEIGHBOURS)
def test_a_bad_neighbour_costs_nobody_a_verdict(judge, three, name):
    def bad(candidate: Candidate) -> Judgement | None:
        with contextlib.suppress(TaskError, DeviceError):  # where it takes the reference's memory
            return judge(CHAIN.task, candidate, on=three)

    with ThreadPoolExecutor(3) as threads:
        neighbour = threads.submit(bad, NEIGHBOURS[name])
        honest = [threads.submit(judge, CHAIN.task, CHAIN.good, on=three) for _ in range(2)]
        honest += [threads.submit(judge, CHAIN.task, CHAIN.bad, on=three) for _ in range(2)]
        outcomes = [each.result().outcome for each in honest]
        judged = neighbour.result()
    assert outcomes == [Outcome.CORRECT] * 2 + [Outcome.WRONG] * 2
    if name != "takes all memory":
        assert judged is not None and not judged.accepted and "first_try" in judged.details
