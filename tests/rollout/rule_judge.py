"""A judge of one rule, for tests of what happens around judging: right is what says so in model_new.py."""

from __future__ import annotations

import asyncio

from sandbox.types import Candidate, DeviceError, Judgement, Outcome, Task


class RuleJudge:
    """`# good` is correct (reward 3 when timed), `# lost` is trouble of the device, anything else is wrong."""

    def __init__(self, *, seconds: float = 0.0) -> None:
        self.seconds = seconds
        self.calls: list[tuple[dict[str, str], bool]] = []

    async def judge(self, task: Task, candidate: Candidate, *, skill: str, timed: bool = True) -> Judgement:
        self.calls.append((candidate.files, timed))
        await asyncio.sleep(self.seconds)
        text = candidate.files.get("model_new.py", "")
        if "# lost" in text:
            raise DeviceError("the device is gone")
        if "# good" in text:
            return Judgement(outcome=Outcome.CORRECT, reward=3.0 if timed else None, message="")
        return Judgement(outcome=Outcome.WRONG, reward=-1.0, message="no good")
