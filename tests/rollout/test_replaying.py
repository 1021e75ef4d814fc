from __future__ import annotations

from pathlib import Path

from rollout_tokenizers import small_tokenizer
from rule_judge import RuleJudge

from rollout.chat import ChatFormat
from rollout.config import DialogueConfig
from rollout.parsers import make_parser
from rollout.replaying import RecordedPolicy, compare
from rollout.scripted import Opening, Script, ScriptedPolicy
from rollout.trajectory_codec import decode_trajectory, encode_trajectory
from rollout.types import StopReason, Trajectory
from rollout.worker import RolloutWorker
from sandbox.config import SandboxConfig
from sandbox.types import Candidate, Judgement, Outcome, Task

PARSER = make_parser("qwen3_coder")
TASK = Task(task_id="double", code="class Model:\n    size = 3\n")
DIALOGUE = DialogueConfig(max_context_tokens=3000, max_reply_tokens=200, max_seconds=60)


class StrictJudge(RuleJudge):
    """Finds nothing good any more."""

    async def judge(self, task: Task, candidate: Candidate, *, skill: str, timed: bool = True) -> Judgement:
        return Judgement(outcome=Outcome.REFUSED, reward=-1.0, message="refused: new rule")


def bash(command: str) -> str:
    return PARSER.render("bash", {"command": command})


def write(text: str) -> str:
    return PARSER.render("write", {"path": "model_new.py", "content": text})


async def roll(policy, tmp_path: Path, *, judge=None, task: Task = TASK, dialogue=DIALOGUE) -> Trajectory:
    worker = RolloutWorker(
        policy, judge or RuleJudge(), SandboxConfig(backend="process"), "cpp", scratch_dir=tmp_path / "scratch"
    )
    return await worker.run(task, stage="s", sample_index=0, seed=0, dialogue=dialogue, trajectory_id="s-000000")


async def recorded(tmp_path: Path, *replies: str, dialogue: DialogueConfig = DIALOGUE) -> Trajectory:
    def script(opening: Opening) -> Script:
        for reply in replies:
            _ = yield reply

    policy = ScriptedPolicy(script, ChatFormat(small_tokenizer()))
    return decode_trajectory(encode_trajectory(await roll(policy, tmp_path, dialogue=dialogue)))


WORK = (write("# good"), bash("cat model.py") + bash("date +%N"), bash("python3 utils/verification.py"), "Done.")


async def test_a_replay_on_the_same_machine_differs_in_numbers_alone(tmp_path: Path) -> None:
    stored = await recorded(tmp_path, *WORK)
    replayed = await roll(RecordedPolicy(stored), tmp_path)
    comparison = compare(stored, replayed)
    assert comparison.same_outcome and comparison.turns == 4 and comparison.calls == 4
    assert [(d.turn, d.what, d.numbers_only) for d in comparison.differences] == [(1, "bash", True)]
    assert replayed.turns[2].token_ids.tolist() == stored.turns[2].token_ids.tolist()


async def test_a_replay_shows_where_files_tools_or_the_judge_say_something_else(tmp_path: Path) -> None:
    stored = await recorded(tmp_path, *WORK)
    other = Task(task_id="double", code="class Model:\n    bias = 3\n")
    comparison = compare(stored, await roll(RecordedPolicy(stored), tmp_path, judge=StrictJudge(), task=other))
    assert not comparison.same_outcome
    found = {(d.turn, d.what) for d in comparison.differences if not d.numbers_only}
    assert found == {(1, "bash"), (2, "bash"), (2, "outcome"), (None, "outcome")}
    cat = next(d for d in comparison.differences if d.turn == 1 and not d.numbers_only)
    assert "size" in cat.stored and "bias" in cat.replayed


async def test_cut_replies_and_limits_replay_as_they_were(tmp_path: Path) -> None:
    cut = write("# good") + "word " * 400
    stored = await recorded(
        tmp_path, cut, bash("cat model_new.py"), bash("true"), dialogue=DIALOGUE.model_copy(update={"max_turns": 3})
    )
    assert stored.turns[0].truncated and stored.stop_reason is StopReason.MAX_TURNS
    assert compare(stored, await roll(RecordedPolicy(stored), tmp_path)).differences == []


async def test_a_replay_that_ends_early_says_so(tmp_path: Path) -> None:
    stored = await recorded(tmp_path, *WORK)
    short = DIALOGUE.model_copy(update={"max_turns": 2})
    comparison = compare(stored, await roll(RecordedPolicy(stored), tmp_path, dialogue=short))
    (end,) = [d for d in comparison.differences if d.what == "end"]
    assert (end.turn, end.stored, end.replayed) == (2, "4 turns, finished", "2 turns, max_turns")
