"""Which parts of a run share a GPU."""

from __future__ import annotations

import pytest

from jaxagent.config.gpus import GpuConfig, GpuPlan, plan_gpus


def plan(gpus: dict[str, float], *, engines: int = 1, profilers: int = 1, transfer: str = "ipc", learner: bool = True):
    return plan_gpus(
        GpuConfig(**gpus),  # type: ignore[arg-type]
        with_learner=learner,
        num_engines=engines,
        num_profilers=profilers,
        weight_transfer=transfer,
    )


@pytest.mark.parametrize(
    ("found", "expected"),
    [
        # all three on one GPU
        (plan({"learner": 0.4, "engine": 0.4, "profiler": 0.2}), ([1], 0, [0], [0])),
        # learner and profiler on one, the engine on the other
        (plan({"learner": 0.7, "engine": 1, "profiler": 0.3}, transfer="nccl"), ([1, 1], 0, [1], [0])),
        # shares that would fit one GPU are kept apart for NCCL
        (plan({"learner": 0.4, "engine": 0.4, "profiler": 0.2}, transfer="nccl"), ([1, 1], 0, [1], [0])),
        # a learner of four GPUs, two engines on a fifth, a profiler alone
        (plan({"learner": 4, "engine": 0.5}, engines=2, transfer="nccl"), ([4, 1, 1], 0, [1, 1], [2])),
        # thirds
        (plan({"learner": 1 / 3, "engine": 1 / 3, "profiler": 1 / 3}), ([1], 0, [0], [0])),
        # an evaluation has no learner; the judge may be somebody else's
        (plan({"learner": 1, "engine": 0.5, "profiler": 0.5}, learner=False, profilers=3), ([1, 1], None, [0], [0, 1, 1])),
        # nothing on GPUs
        (plan({}, profilers=0, transfer="shared_memory"), ([], None, [], [])),
        # the learner computes on CPUs
        (plan({"engine": 1}, profilers=0, transfer="shared_memory"), ([1], None, [0], [])),
    ],
)  # fmt: skip
def test_parts_are_put_together_first_fit(found: GpuPlan, expected: tuple) -> None:
    assert (found.bundles, found.learner, found.engines, found.profilers) == expected


@pytest.mark.parametrize(
    ("gpus", "engines", "message"),
    [
        ({"learner": 0.6, "engine": 0.5}, 1, "gpus.engine=0.5 for 1 engine.s. are 1.1 of one GPU"),
        ({"learner": 0.4, "engine": 0.4}, 2, "for 2 engine.s. are 1.2 of one GPU: engine.weight_transfer=ipc needs"),
        ({"learner": 0.4}, 1, "gpus.learner=0.4, gpus.engine=0: engine.weight_transfer=ipc needs the learner"),
        ({"learner": 2, "engine": 1}, 1, "are 3 of one GPU"),
    ],
)
def test_shares_that_ipc_cannot_work_with_are_refused(gpus: dict, engines: int, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        plan(gpus, engines=engines)


def test_a_learner_has_a_share_of_one_gpu_or_whole_ones() -> None:
    with pytest.raises(ValueError, match="1.5 is neither a share of one GPU nor a whole number"):
        GpuConfig(learner=1.5)
