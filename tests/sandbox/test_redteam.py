"""The project's red-team cases against the judge, each with the verdict it has to get."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import judge_cases
import pytest
import redteam_cases

from sandbox.config import CompileConfig, JudgeConfig
from sandbox.judge.local import LocalJudge
from sandbox.types import Judgement, Outcome

NAMES = sorted(path.parent.name for path in (redteam_cases.OWN / "cases").glob("*/expect.json"))


@pytest.fixture(scope="module")
def cases(tmp_path_factory) -> dict[str, redteam_cases.Case]:
    loaded = redteam_cases.load(redteam_cases.OWN / "cases", tmp_path_factory.mktemp("workdirs"))
    return {case.name: case for case in loaded}


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("redteam")
    judge_cases.baseline_dir(folder)
    return folder


@pytest.fixture
async def judge(folder: Path) -> AsyncIterator[LocalJudge]:
    config = JudgeConfig(baseline_dir=folder / "baselines", quiet=False, timeout_s=10, warmup_ms=20)
    judge = LocalJudge(config, CompileConfig(cache_dir=folder / "compile"), registry_dir=folder / "quiet")
    yield judge
    await judge.close()


@pytest.mark.slow
@pytest.mark.parametrize("name", NAMES)
async def test_a_case_gets_its_verdict(judge: LocalJudge, cases: dict[str, redteam_cases.Case], name: str) -> None:
    case = cases[name]
    judgement = await judge.judge(case.task, case.candidate, skill=case.skill)
    assert case.is_right(judgement), judgement.message


def test_a_rejection_for_another_reason_is_not_right(cases: dict[str, redteam_cases.Case]) -> None:
    cheat, honest = cases["skips_one_call_in_three"], cases["ok_plain"]

    def got(outcome: Outcome, message: str = "") -> Judgement:
        return Judgement(outcome=outcome, reward=None, message=message)

    assert cheat.is_right(got(Outcome.WRONG, "a timed call: output 0"))
    assert not cheat.is_right(got(Outcome.WRONG, "check 1"))
    assert not cheat.is_right(got(Outcome.COMPILE_ERROR)) and not cheat.is_right(got(Outcome.CORRECT))
    assert honest.is_right(got(Outcome.CORRECT)) and not honest.is_right(got(Outcome.WRONG))
    other = cases["takes_all_memory"]
    assert not other.is_right(got(Outcome.COMPILE_ERROR))


def test_every_case_has_a_skill_and_says_what_it_does(cases: dict[str, redteam_cases.Case]) -> None:
    assert {case.skill for case in cases.values()} <= {"cpp", "cpp_agent"}
    assert len({case.kind for case in cases.values()}) >= 25
    assert sum(case.accept for case in cases.values()) >= 10
