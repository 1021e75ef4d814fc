from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
from rollout_tokenizers import small_tokenizer
from rule_judge import RuleJudge

from rollout.chat import ChatFormat
from rollout.config import DialogueConfig
from rollout.parsers import make_parser
from rollout.scripted import Opening, Script, ScriptedPolicy
from rollout.types import StopReason, Trajectory
from rollout.worker import RolloutWorker
from sandbox.config import CompileConfig, JudgeConfig, SandboxConfig
from sandbox.judge.local import LocalJudge
from sandbox.quiet import QuietLease
from sandbox.types import DeviceError, Outcome, Task

PARSER = make_parser("qwen3_coder")
TASK = Task(task_id="double", code="class Model:\n    pass  # twice x\n")
AGENTIC = DialogueConfig(max_context_tokens=3000, max_seconds=60)
SINGLE = DialogueConfig(kind="single_turn", max_context_tokens=3000)
PROCESS = SandboxConfig(backend="process")


def bash(command: str) -> str:
    return PARSER.render("bash", {"command": command})


def write(text: str, path: str = "model_new.py") -> str:
    return PARSER.render("write", {"path": path, "content": text})


VERIFY = bash("python3 utils/verification.py")


def policy_of(*replies: str, chat: ChatFormat | None = None, openings: list[Opening] | None = None) -> ScriptedPolicy:
    def script(opening: Opening) -> Script:
        if openings is not None:
            openings.append(opening)
        for reply in replies:
            _ = yield reply  # not `yield from`: a list cannot be sent observations

    return ScriptedPolicy(script, chat)


async def rolled_out(policy, tmp_path: Path, dialogue: DialogueConfig, judge=None, **options) -> Trajectory:
    worker = RolloutWorker(policy, judge or RuleJudge(), PROCESS, "cpp", scratch_dir=tmp_path / "scratch", **options)
    trajectory = await worker.run(TASK, stage="s", sample_index=2, seed=7, dialogue=dialogue)
    assert list((tmp_path / "scratch").iterdir()) == []
    return trajectory


async def test_an_agent_writes_verifies_repairs_and_its_final_files_are_judged(tmp_path: Path) -> None:
    judge, openings = RuleJudge(), []
    chat = ChatFormat(small_tokenizer())
    policy = policy_of(
        write("# bad"), VERIFY, write("# good") + bash("cat model.py"), VERIFY, "Done.", chat=chat, openings=openings
    )
    trajectory = await rolled_out(policy, tmp_path, AGENTIC, judge)
    assert trajectory.stop_reason is StopReason.FINISHED
    assert trajectory.judgement.reward == 3.0
    assert [turn.judgement and turn.judgement.outcome for turn in trajectory.turns] == [
        None, Outcome.WRONG, None, Outcome.CORRECT, None,
    ]  # fmt: skip
    assert "no good" in trajectory.turns[1].observations[0]
    assert "# twice x" in trajectory.turns[2].observations[1]
    assert judge.calls[-1] == ({"model_new.py": "# good\n"}, True)
    assert [timed for _, timed in judge.calls] == [False, False, True]
    assert (trajectory.trajectory_id, trajectory.task_id, trajectory.seed) == ("s/double/2/7", "double", 7)
    assert openings[0].session_id == trajectory.trajectory_id and TASK.code.strip() in openings[0].user
    assert all(len(turn.token_ids) > 0 for turn in trajectory.turns)


async def test_tools_of_the_judge_give_judgements_like_the_scripts_do(tmp_path: Path) -> None:
    judge = RuleJudge()
    verify = PARSER.render("verify", {})
    policy = policy_of(write("# bad"), verify, write("# good"), PARSER.render("profile", {}), "Done.")
    trajectory = await rolled_out(policy, tmp_path, AGENTIC.model_copy(update={"prompt": "full"}), judge)
    assert [turn.judgement and turn.judgement.reward for turn in trajectory.turns] == [None, -1.0, None, 3.0, None]
    assert trajectory.turns[3].observations == ["correct\nreward: 3"]
    assert [timed for _, timed in judge.calls] == [False, True, True]


async def test_a_single_turn_answer_is_written_and_judged_and_nothing_is_run(tmp_path: Path) -> None:
    judge = RuleJudge()
    policy = policy_of("Here.\n" + write("int a;", "kernels/k.cpp") + write("# good") + bash("touch /tmp/never"))
    trajectory = await rolled_out(policy, tmp_path, SINGLE, judge)
    assert trajectory.stop_reason is StopReason.FINISHED and len(trajectory.turns) == 1
    assert trajectory.judgement.accepted
    assert judge.calls == [({"model_new.py": "# good\n", "kernels/k.cpp": "int a;\n"}, True)]
    assert trajectory.turns[0].tool_calls[2].error is not None
    assert not Path("/tmp/never").exists()


async def test_an_answer_without_files_is_judged_as_it_is(tmp_path: Path) -> None:
    trajectory = await rolled_out(policy_of("I do not know."), tmp_path, SINGLE)
    assert trajectory.judgement.reward == -1.0 and trajectory.turns[0].tool_calls == []


async def test_a_driver_may_name_the_trajectory(tmp_path: Path) -> None:
    worker = RolloutWorker(policy_of("No."), RuleJudge(), PROCESS, "cpp", scratch_dir=tmp_path)
    trajectory = await worker.run(TASK, stage="s", sample_index=0, seed=0, dialogue=SINGLE, trajectory_id="s-000004")
    assert trajectory.trajectory_id == "s-000004"


@pytest.mark.parametrize("replies", [[write("# lost"), VERIFY, "Done."], [write("# lost"), "Done."]])
async def test_trouble_of_the_judge_is_raised_and_never_scored(tmp_path: Path, replies: list[str]) -> None:
    with pytest.raises(DeviceError):
        await rolled_out(policy_of(*replies), tmp_path, AGENTIC)
    assert list((tmp_path / "scratch").iterdir()) == []


async def test_waiting_for_the_judge_does_not_count_as_the_agents_time(tmp_path: Path) -> None:
    dialogue = DialogueConfig(max_context_tokens=3000, max_seconds=3.0)
    policy = policy_of(write("# good"), VERIFY, VERIFY, "Done.")
    trajectory = await rolled_out(policy, tmp_path, dialogue, RuleJudge(seconds=2.0))
    assert trajectory.stop_reason is StopReason.FINISHED and trajectory.seconds > 5.0


async def test_what_an_agent_leaves_running_cannot_change_the_judged_files(tmp_path: Path) -> None:
    judge = RuleJudge(seconds=4.5)
    later = bash("(sleep 4; echo '# bad' > model_new.py) > /dev/null 2>&1 &")
    trajectory = await rolled_out(policy_of(write("# good") + later, "Done."), tmp_path, AGENTIC, judge)
    assert trajectory.judgement.accepted and judge.calls[-1][0] == {"model_new.py": "# good\n"}


async def test_a_sandboxs_processes_are_registered_for_quiet_while_it_is_open(tmp_path: Path) -> None:
    quiet = QuietLease(tmp_path / "quiet")
    seen: list[list[str]] = []

    def script(opening: Opening) -> Script:
        yield bash("true")
        seen.append([entry.name for entry in (tmp_path / "quiet").iterdir()])
        yield "Done."

    await rolled_out(ScriptedPolicy(script), tmp_path, AGENTIC, quiet=quiet)
    assert len(seen[0]) == 1 and seen[0][0].startswith("tree-")
    assert list((tmp_path / "quiet").iterdir()) == []


async def test_many_rollouts_share_one_worker(tmp_path: Path) -> None:
    def script(opening: Opening) -> Script:
        yield write("# good" if opening.seed % 2 else "# bad")
        yield VERIFY
        yield "Done."

    worker = RolloutWorker(ScriptedPolicy(script), RuleJudge(), PROCESS, "cpp", scratch_dir=tmp_path)
    runs = [worker.run(TASK, stage="s", sample_index=i, seed=i, dialogue=AGENTIC) for i in range(6)]
    trajectories = await asyncio.gather(*runs)
    assert [trajectory.judgement.accepted for trajectory in trajectories] == [False, True] * 3
    assert [trajectory.turns[1].judgement.accepted for trajectory in trajectories] == [False, True] * 3  # type: ignore[union-attr]
    assert list(tmp_path.iterdir()) == []


KERNEL = """\
#include <cstdint>

extern "C" void relu_scale(const float* x, float* y, int64_t n, float scale) {
#pragma omp parallel for simd schedule(static)
  for (int64_t i = 0; i < n; ++i) y[i] = (x[i] > 0.0f ? x[i] : 0.0f) * scale;
}
"""
MODEL_NEW = """\
import torch
import torch.nn as nn
import cpp_kernels


class ModelNew(nn.Module):
    def __init__(self, scale):
        super().__init__()
        self.scale = scale

    def forward(self, x):
        x = x.contiguous()
        y = torch.empty_like(x)
        cpp_kernels.relu_scale(x, y, x.numel(), self.scale)
        return y
"""
RELU_SCALE = Task(
    task_id="relu_scale",
    code=MODEL_NEW.replace("import cpp_kernels\n", "").replace("ModelNew", "Model").split("    def forward")[0]
    + "    def forward(self, x):\n        return torch.relu(x) * self.scale\n\n\n"
    + "def get_inputs():\n    return [torch.randn(512, 1024)]\n\n\ndef get_init_inputs():\n    return [0.75]\n",
)


@pytest.mark.slow
async def test_a_dialogue_about_a_real_kernel_ends_with_its_real_reward(tmp_path: Path) -> None:
    files = write(KERNEL.replace("> 0.0f", "> 1.0f"), "kernels/k.cpp") + write(MODEL_NEW)
    policy = policy_of(files, VERIFY, write(KERNEL, "kernels/k.cpp"), bash("bash utils/compile.sh"), VERIFY, "Done.")
    judge = LocalJudge(
        JudgeConfig(baseline_dir=tmp_path / "baselines", quiet=False), CompileConfig(cache_dir=tmp_path / "cache")
    )
    try:
        worker = RolloutWorker(policy, judge, PROCESS, "cpp", scratch_dir=tmp_path / "scratch")
        trajectory = await worker.run(RELU_SCALE, stage="s", sample_index=0, seed=0, dialogue=AGENTIC)
    finally:
        await judge.close()
    verdicts = [turn.judgement.outcome if turn.judgement else None for turn in trajectory.turns]
    assert verdicts == [None, Outcome.WRONG, None, None, Outcome.CORRECT, None]
    assert "compiled" in trajectory.turns[3].observations[0]
    assert trajectory.judgement.accepted and trajectory.judgement.reward in (1.0, 2.0, 3.0)
    assert trajectory.judgement.candidate_ms and trajectory.judgement.eager_ms
