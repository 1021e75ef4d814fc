"""Verdicts on disk: the same question is answered by another process, any other is not."""

from __future__ import annotations

from pathlib import Path

import judge_cases as cases
import pytest

from sandbox.config import JudgeConfig
from sandbox.judge.coordinator import JudgeCoordinator
from sandbox.judge.verdicts import Verdicts
from sandbox.pool import ProfilerPool
from sandbox.types import Artifact, Candidate, CompileResult, Judgement, Outcome

CONFIG = JudgeConfig()
CORRECT = Judgement(outcome=Outcome.CORRECT, reward=3.0, message="fast", candidate_ms=1.5, details={"rounds": [1.0]})
QUESTION = (cases.CHAIN_TASK, cases.HONEST, "cpp", True)


def test_another_opening_gives_the_same_verdict(tmp_path: Path):
    verdicts = Verdicts(CONFIG, tmp_path / "verdicts.jsonl")
    key = verdicts.key(*QUESTION)
    assert verdicts.get(key) is None
    verdicts.add(key, CORRECT)
    assert Verdicts(CONFIG, tmp_path / "verdicts.jsonl").get(key) == CORRECT


@pytest.mark.parametrize(
    ("changed", "same"),
    [
        ({"timed_rounds": 5}, False),
        ({"protocol": "paper"}, False),
        ({"num_devices": 2}, True),
        ({"max_retries": 0}, True),
    ],
)
def test_settings_that_change_a_verdict_ask_again(changed: dict[str, object], same: bool):
    keys = {Verdicts(CONFIG.model_copy(update=update)).key(*QUESTION) for update in ({}, changed)}
    assert len(keys) == (1 if same else 2)


def test_each_part_of_the_question_counts():
    verdicts, (task, candidate, skill, timed) = Verdicts(CONFIG), QUESTION
    others = [
        (cases.AFFINE_TASK, candidate, skill, timed),
        (task, Candidate(files={}), skill, timed),
        (task, candidate, "cpp_agent", timed),
        (task, candidate, skill, not timed),
    ]
    assert len({verdicts.key(*question) for question in [QUESTION, *others]}) == 5


def test_a_line_cut_short_is_dropped_and_the_next_one_is_whole(tmp_path: Path):
    path = tmp_path / "verdicts.jsonl"
    Verdicts(CONFIG, path).add("a", CORRECT)
    whole = path.read_bytes()
    path.write_bytes(whole + whole[:40])
    verdicts = Verdicts(CONFIG, path)
    assert verdicts.get("a") == CORRECT and path.read_bytes() == whole
    verdicts.add("b", CORRECT)
    assert Verdicts(CONFIG, path).get("b") == CORRECT


def test_a_full_disk_costs_no_verdict(tmp_path: Path, file_size_limit, caplog):
    verdicts = Verdicts(CONFIG, tmp_path / "verdicts.jsonl")
    with file_size_limit(50):
        verdicts.add("a", CORRECT)
    assert "was not kept" in caplog.text
    verdicts.add("b", CORRECT)
    again = Verdicts(CONFIG, tmp_path / "verdicts.jsonl")
    assert again.get("b") == CORRECT and again.get("a") is None


async def test_a_coordinator_judges_nothing_that_an_earlier_one_has_judged(tmp_path: Path):
    class Device:
        calls = 0

        async def judge(self, *_: object, **__: object) -> Judgement:
            Device.calls += 1
            return CORRECT

        async def close(self) -> None:
            pass

    async def compile(*_: object) -> CompileResult:
        return CompileResult(artifact=Artifact(sha256="0", arch="", shared_object=b""), message="", seconds=0.0)

    async def make(_: int) -> Device:
        return Device()

    config = JudgeConfig(protocol="paper")
    for _ in range(2):
        coordinator = JudgeCoordinator(compile, ProfilerPool(make, 1), config, tmp_path / "verdicts.jsonl")
        assert (await coordinator.judge(cases.CHAIN_TASK, cases.HONEST, skill="cpp")).reward == 3.0
        stats = coordinator.stats()
        await coordinator.close()
    assert Device.calls == 1 and stats["remembered"] == 1 and "judged" not in stats
