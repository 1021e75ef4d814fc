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
