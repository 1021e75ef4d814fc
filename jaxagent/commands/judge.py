"""`jaxagent judge`: one workdir, one Judgement. Neither Ray nor Docker is needed."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

from jaxagent.config.load import ConfigError
from sandbox.config import CompileConfig, JudgeConfig
from sandbox.judge.local import LocalJudge
from sandbox.skill import collect_candidate, load_skill
from sandbox.tasks import load_tasks
from sandbox.types import Judgement

NOTABLE_DRIFT = 1.1
"""torch eager's time over its stored one, or the inverse, from which a reader is told: rounds differ by less."""


async def judge_workdir(workdir: Path, *, skill: str, protocol: Literal["hardened", "paper"]) -> Judgement:
    """Judges model_new.py and kernels/ of `workdir` against its model.py; nothing else in it is read or written.

    Raises ConfigError where there is nothing to judge, TaskError for a model.py that cannot be used.
    """
    for name in ("model.py", "model_new.py"):
        if not (workdir / name).is_file():
            raise ConfigError(
                f"{workdir}: {name} is missing; a workdir to judge holds model.py (Model, get_inputs, "
                "get_init_inputs), model_new.py (ModelNew) and kernels/"
            )
    device = load_skill(skill).device
    [task] = load_tasks(str(workdir / "model.py"))
    # A machine of any size can judge: one device of all its cores, nothing else of ours running that had to be frozen.
    judge = LocalJudge(JudgeConfig(protocol=protocol, device=device, quiet=False), CompileConfig())
    try:
        return await judge.judge(task, collect_candidate(workdir), skill=skill)
    finally:
        await judge.close()


def describe(judgement: Judgement) -> list[str]:
    """The verdict as lines for a person; of a timed one also what tells how far its figures can be trusted."""
    lines = [f"{judgement.outcome}, reward {judgement.reward}", judgement.message]
    if judgement.candidate_ms is None:
        return lines
    eager, drift = judgement.details["eager"], judgement.details["drift"]
    lines.append(f"torch eager's quartiles: {eager['p25_ms']:.4g}–{eager['p75_ms']:.4g} ms ({eager['rounds']} rounds)")
    earlier = judgement.details.get("baseline_retimed")
    if earlier is not None:
        lines.append(
            f"the baseline was timed again: eager took {earlier['drift']:.2f}x its stored {earlier['eager_ms']:.4g} "
            "ms, so one of the two was measured on a disturbed machine"
        )
    if not 1 / NOTABLE_DRIFT < drift < NOTABLE_DRIFT:
        lines.append(
            f"eager took {drift:.2f}x its stored {judgement.details['stored_eager_ms']:.4g} ms, and torch.compile's "
            "stored time was scaled by as much: the machine is faster or slower than then; judge again when it is quiet"
        )
    return lines
